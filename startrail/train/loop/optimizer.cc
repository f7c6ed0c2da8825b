#include "startrail/train/loop/optimizer.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <algorithm>
#include <cmath>
#include <numbers>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include "startrail/base/error.h"

namespace startrail {
namespace {

constexpr int64_t kNormStep = 1 << 18;  // squares in float64 at a time

}  // namespace

ShardedAdamW::ShardedAdamW(const Model& model, ParameterRow& row, std::shared_ptr<Group> world,
                           const AdamWOptions& options)
    : row_(row),
      world_(std::move(world)),
      options_(options),
      shard_(shard_of(row.size(), world_->rank(), world_->size())) {
  mean_ = at::zeros({shard_.size()}, at::kFloat);
  square_ = at::zeros({shard_.size()}, at::kFloat);
  // In float32 the row's own part serves; a narrower row needs the exact values beside it.
  weights_ = row.weights().narrow(0, shard_.begin, shard_.size());
  if (row.weights().scalar_type() != at::kFloat) weights_ = weights_.to(at::kFloat);
  if (options.ema > 0) ema_ = at::zeros({shard_.size()}, at::kFloat);
  each_overlap(model, shard_, [&](const Overlap& part) {
    if (!ranges_.empty() && ranges_.back().decay == part.parameter.decay)
      ranges_.back().count += part.count;
    else
      ranges_.push_back({part.in_shard, part.count, part.parameter.decay});
  });
}

void ShardedAdamW::set_weights(const at::Tensor& shard_values) {
  weights_.copy_(shard_values);
  if (ema_.defined()) ema_.copy_(shard_values);
  share_weights();
}

// This rank's shard of the gradients, summed over ranks in their order, so that the bits do not depend on arrival. A
// piece of it at a time comes from all ranks at once: about as much memory as one more shard (gradient_piece), and
// never a rank that sends to all before it receives from any, which would wait for ever where a send needs its
// receiver.
at::Tensor ShardedAdamW::sum_gradients() {
  const at::Tensor& mine = row_.gradients();
  const int ranks = world_->size(), rank = world_->rank();
  if (ranks == 1) return mine;
  Channel& channel = world_->channel();
  const int64_t longest = longest_shard(row_.size(), ranks), piece = gradient_piece(longest, ranks);
  at::Tensor sum = at::zeros({shard_.size()}, at::kFloat);
  const at::Tensor arriving = at::empty({ranks, piece}, at::kFloat);
  for (int64_t begin = 0; begin < longest; begin += piece) {
    const auto part_of = [&](const Shard& shard) {
      const int64_t first = std::min(shard.begin + begin, shard.end);
      return Shard{first, std::min(first + piece, shard.end)};
    };
    const Shard own = part_of(shard_);
    std::vector<Post> batch;
    for (int i = 1; i < ranks; ++i) {
      const int to = (rank + i) % ranks, from = (rank - i + ranks) % ranks;
      if (const Shard part = part_of(shard_of(row_.size(), to, ranks)); part.size() > 0)
        batch.push_back({Post::Way::send, mine.narrow(0, part.begin, part.size()), to, kGradientTag, Traffic::merge});
      if (own.size() > 0)
        batch.push_back(
            {Post::Way::receive, arriving[from].narrow(0, 0, own.size()), from, kGradientTag, Traffic::merge});
    }
    channel.wait(channel.post(batch));
    if (own.size() == 0) continue;
    const at::Tensor added = sum.narrow(0, begin, own.size());
    for (int from = 0; from < ranks; ++from)
      added.add_(from == rank ? mine.narrow(0, own.begin, own.size()) : arriving[from].narrow(0, 0, own.size()));
  }
  return sum;
}

void ShardedAdamW::share_weights() {
  at::Tensor& row = row_.weights();
  const int ranks = world_->size(), rank = world_->rank();
  const at::Tensor own = row.narrow(0, shard_.begin, shard_.size());
  if (!own.is_alias_of(weights_)) own.copy_(weights_);
  std::vector<Post> batch;
  for (int i = 1; i < ranks; ++i) {
    const int to = (rank + i) % ranks, from = (rank - i + ranks) % ranks;
    if (shard_.size() > 0) batch.push_back({Post::Way::send, own, to, kWeightTag, Traffic::gather});
    if (const Shard part = shard_of(row_.size(), from, ranks); part.size() > 0)
      batch.push_back({Post::Way::receive, row.narrow(0, part.begin, part.size()), from, kWeightTag, Traffic::gather});
  }
  world_->channel().wait(world_->channel().post(batch));
}

double ShardedAdamW::step(double learning_rate, double scale) {
  const at::NoGradGuard no_grad;
  at::Tensor gradient = sum_gradients();
  if (scale != 1) gradient.mul_(scale);
  double own = 0, square = 0;
  for (const at::Tensor& part : gradient.split(kNormStep)) own += part.to(at::kDouble).square_().sum().item<double>();
  for (double part : world_->control().gather(own)) square += part;
  const double norm = std::sqrt(square);
  if (std::isfinite(norm)) {
    if (options_.clip > 0 && norm > options_.clip) gradient.mul_(options_.clip / norm);
    ++steps;
    const at::Tensor count = at::full({}, static_cast<double>(steps), at::kFloat);
    for (bool decay : {true, false}) {
      std::vector<at::Tensor> weights, gradients, means, squares, counts;
      for (const Range& range : ranges_) {
        if (range.decay != decay) continue;
        weights.push_back(weights_.narrow(0, range.begin, range.count));
        gradients.push_back(gradient.narrow(0, range.begin, range.count));
        means.push_back(mean_.narrow(0, range.begin, range.count));
        squares.push_back(square_.narrow(0, range.begin, range.count));
        counts.push_back(count);
      }
      if (!weights.empty())
        at::_fused_adamw_(weights, gradients, means, squares, {}, counts, learning_rate, options_.beta1, options_.beta2,
                          decay ? options_.weight_decay : 0, options_.eps, /*amsgrad=*/false, /*maximize=*/false);
    }
    if (ema_.defined()) {
      const double count = static_cast<double>(steps), stays = std::min(options_.ema, (1 + count) / (10 + count));
      ema_.lerp_(weights_, 1 - stays);
    }
    share_weights();
  }
  row_.clear_gradients();
  return norm;
}

int64_t gradient_piece(int64_t shard, int ranks) {
  constexpr int64_t kLeast = 1 << 14, kMost = 1 << 20;  // 64 kB to 4 MB a message
  if (ranks == 1) return 0;
  return std::min(shard, std::clamp(shard / (ranks - 1), kLeast, kMost));
}

double learning_rate(const ScheduleOptions& options, int64_t step) {
  const bool cosine = options.kind == "cosine", linear = options.kind == "linear";
  if (!cosine && !linear && options.kind != "constant")
    throw UserError(cat("schedule '", options.kind, "' is not known; valid: cosine, linear, constant"));
  if (step < options.warmup)
    return options.learning_rate * static_cast<double>(step + 1) / static_cast<double>(options.warmup);
  const double span = std::max<double>(1, static_cast<double>(options.steps - options.warmup));
  const double done = std::min(1.0, static_cast<double>(step - options.warmup) / span);
  double share = 1;
  if (cosine) share = options.floor + (1 - options.floor) * 0.5 * (1 + std::cos(std::numbers::pi * done));
  if (linear) share = 1 - (1 - options.floor) * done;
  return options.learning_rate * share;
}

}  // namespace startrail

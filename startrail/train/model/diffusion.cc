#include "startrail/train/model/diffusion.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <algorithm>
#include <cmath>

#include "startrail/base/error.h"
#include "startrail/base/random.h"

namespace startrail {
namespace {

constexpr int64_t kTimes = 1000;
constexpr int64_t kTokensTogether = 4096;  // pictures are drawn together up to so many: small products are slow

// signal^2 after each of DDPM's steps, whose betas rise from 1e-4 to 0.02.
const std::vector<double>& kept_signal() {
  static const std::vector<double> kept = [] {
    std::vector<double> all;
    double product = 1;
    for (int64_t i = 0; i < kTimes; ++i) {
      product *= 1 - (1e-4 + (0.02 - 1e-4) * static_cast<double>(i) / static_cast<double>(kTimes - 1));
      all.push_back(product);
    }
    return all;
  }();
  return kept;
}

bool is_flow(const std::string& objective) {
  STARTRAIL_CHECK(objective == "flow" || objective == "ddpm", objective);
  return objective == "flow";
}

Level ddpm_level(int64_t time) {
  const double kept = kept_signal()[time];
  return {static_cast<double>(time), std::sqrt(kept), std::sqrt(1 - kept)};
}

// Every rank's rows, in the order of the sequence.
at::Tensor gather_rows(const at::Tensor& mine, const Layout& split, Group& group) {
  int64_t most = 0;
  for (int rank = 0; rank < group.size(); ++rank) most = std::max(most, chunk_tokens(split, rank));
  at::Tensor padded = at::zeros({most, mine.size(1)}, mine.options());
  padded.narrow(0, 0, mine.size(0)).copy_(mine);
  at::Tensor whole = at::empty({split.tokens, mine.size(1)}, mine.options());
  const auto parts = group.channel().all_gather(padded);
  for (int rank = 0; rank < group.size(); ++rank) {
    const at::Tensor places = places_of(split, rank);
    whole.index_copy_(0, places, parts[rank].narrow(0, 0, places.size(0)));
  }
  return whole;
}

}  // namespace

Level level_at(const std::string& objective, double u) {
  if (is_flow(objective)) return {u * kTimes, 1 - u, u};
  return ddpm_level(std::min(kTimes - 1, static_cast<int64_t>(u * kTimes)));
}

std::vector<Level> sampling_levels(const std::string& objective, int64_t steps) {
  if (steps < 1 || steps > kTimes) throw UserError(cat("steps ", steps, " must be 1 to ", kTimes));
  std::vector<Level> levels;
  for (int64_t i = 0; i < steps; ++i) {
    const double left = static_cast<double>(steps - i) / static_cast<double>(steps);
    levels.push_back(is_flow(objective) ? level_at(objective, left) : ddpm_level(std::lround(left * kTimes) - 1));
  }
  levels.push_back({0, 1, 0});
  return levels;
}

at::Tensor objective_target(const std::string& objective, const at::Tensor& picture, const at::Tensor& noise) {
  return is_flow(objective) ? noise - picture : noise;
}

at::Tensor sampling_step(const std::string& objective, const at::Tensor& noisy, const at::Tensor& prediction,
                         const Level& now, const Level& next) {
  const bool flow = is_flow(objective);
  const at::Tensor picture = flow ? noisy - prediction * now.noise : (noisy - prediction * now.noise) / now.signal;
  const at::Tensor noise = flow ? noisy + prediction * now.signal : prediction;
  return picture * next.signal + noise * next.noise;
}

at::Tensor noise_rows(const std::vector<uint64_t>& keys, const at::Tensor& places, int64_t tokens, int64_t features) {
  const int64_t count = places.size(0);
  at::Tensor rows = at::empty({count, features}, at::kFloat);
  const auto* place = places.data_ptr<int64_t>();
  auto* out = rows.data_ptr<float>();
  at::parallel_for(0, count, 64, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const uint64_t key = keys[place[row] / tokens];
      const int64_t first = place[row] % tokens * features;
      for (int64_t i = 0; i < features; ++i)
        out[row * features + i] = static_cast<float>(normal(key, static_cast<uint64_t>(first + i)));
    }
  });
  return rows;
}

at::Tensor to_patches(const at::Tensor& picture, const std::array<int64_t, 3>& patch) {
  const int64_t channels = picture.size(0), frames = picture.size(1) / patch[0], rows = picture.size(2) / patch[1],
                columns = picture.size(3) / patch[2];
  return picture.reshape({channels, frames, patch[0], rows, patch[1], columns, patch[2]})
      .permute({1, 3, 5, 0, 2, 4, 6})
      .reshape({frames * rows * columns, channels * patch[0] * patch[1] * patch[2]});
}

at::Tensor from_patches(const at::Tensor& patches, const DitConfig& shape) {
  const auto [frames, rows, columns] = shape.patches();
  return patches.view({frames, rows, columns, shape.channels, shape.patch[0], shape.patch[1], shape.patch[2]})
      .permute({3, 0, 4, 1, 5, 2, 6})
      .reshape({shape.channels, shape.size[0], shape.size[1], shape.size[2]});
}

at::Tensor draw(const Dit& model, const DrawOptions& options, const AttentionOptions& attention,
                const std::shared_ptr<Group>& group, const std::function<void(double)>& on_step) {
  const at::NoGradGuard no_grad;
  const DitConfig& shape = model.shape();
  const std::vector<Level> levels = sampling_levels(shape.objective, options.steps);
  const int64_t tokens = shape.tokens(), features = shape.channels * shape.patch_size();
  const auto count = static_cast<int64_t>(options.labels.size());
  const int64_t together = std::max<int64_t>(1, kTokensTogether / tokens);
  std::vector<at::Tensor> pictures;
  for (int64_t first = 0; first < count; first += together) {
    const int64_t here = std::min(together, count - first);
    Example example{here * tokens, {}, {}, {}};
    if (here > 1) example.mask.documents.assign(here, tokens);
    const Sequence sequence = make_sequence(example, attention, group, false);
    std::vector<uint64_t> keys;
    for (int64_t i = first; i < first + here; ++i) keys.push_back(mix(options.seed, static_cast<uint64_t>(i)));
    at::Tensor x = noise_rows(keys, sequence.positions, tokens, features);
    const auto predict = [&](const Level& level, bool told) {
      std::vector<Condition> conditions;
      for (int64_t i = first; i < first + here; ++i) conditions.push_back({level.time, told ? options.labels[i] : -1});
      return model.predict(x, conditions, sequence).to(at::kFloat);
    };
    for (int64_t step = 0; step < options.steps; ++step) {
      at::Tensor prediction = predict(levels[step], true);
      if (options.guidance != 1 && shape.classes > 0) {
        const at::Tensor without = predict(levels[step], false);
        prediction = without + (prediction - without) * options.guidance;
      }
      x = sampling_step(shape.objective, x, prediction, levels[step], levels[step + 1]);
      if (on_step)
        on_step(static_cast<double>(first * options.steps + here * (step + 1)) /
                static_cast<double>(count * options.steps));
    }
    const at::Tensor whole = gather_rows(x, {attention.order, example.tokens, group->size()}, *group);
    for (const at::Tensor& patches : whole.split(tokens)) pictures.push_back(from_patches(patches, shape));
  }
  return at::stack(pictures);
}

}  // namespace startrail

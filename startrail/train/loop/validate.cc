#include "startrail/train/loop/validate.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>

namespace startrail {

Validation validate(const Model& model, const Source& source, const AttentionOptions& options, Group& world,
                    const std::shared_ptr<Group>& group, int64_t buckets, const std::function<bool()>& stop) {
  const at::NoGradGuard no_grad;
  const int groups = world.size() / group->size(), mine = world.rank() / group->size();
  // Sums and counts: of all, then of each bucket.
  at::Tensor sums = at::zeros({buckets + 1}, at::kDouble), counts = at::zeros({buckets + 1}, at::kDouble);
  const auto stops = [&] {
    if (!stop) return false;
    const std::vector<double> all = world.control().gather(stop() ? 1.0 : 0.0);
    return std::ranges::count(all, 0.0) < world.size();
  };
  // As many rounds for every group, since all are asked.
  bool more = true;
  for (int64_t round = 0; round * groups < source.validation_count(); ++round) {
    if (stops()) return {.loss = {}, .by_position = {}, .stopped = true};
    const int64_t i = round * groups + mine;
    if (!more || i >= source.validation_count()) continue;
    const std::optional<Example> example = source.validation(i, options.order, *group);
    more = example.has_value();
    if (!more) continue;
    const Sequence sequence = make_sequence(*example, options, group, false);
    const Loss loss = model.loss(*example, sequence);
    sums[0] += loss.sum;
    counts[0] += loss.count;
    if (buckets == 0) continue;
    const at::Tensor place = (sequence.positions * buckets).floor_divide_(example->tokens) + 1;
    sums.index_add_(0, place, loss.each.to(at::kDouble));
    counts.index_add_(0, place, (example->target >= 0).to(at::kDouble));
  }
  const auto total = [&](const at::Tensor& t) {
    at::Tensor sum = at::zeros_like(t);
    const auto* mine = t.data_ptr<double>();
    for (const auto& one : world.control().gather(std::vector<double>(mine, mine + t.numel())))
      sum.add_(at::tensor(one, at::kDouble));
    return sum;
  };
  const at::Tensor seen = total(counts), means = total(sums) / seen;
  Validation result;
  if (seen[0].item<double>() > 0) result.loss = means[0].item<double>();
  for (int64_t i = 0; i < buckets; ++i) result.by_position.push_back(means[i + 1].item<double>());
  return result;
}

}  // namespace startrail

#include "startrail/train/loop/validate.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

namespace startrail {

Validation validate(const Model& model, const Source& source, const AttentionOptions& options, Group& world,
                    const std::shared_ptr<Group>& group, int64_t buckets) {
  const at::NoGradGuard no_grad;
  const int groups = world.size() / group->size(), mine = world.rank() / group->size();
  // Sums and counts: of all, then of each bucket.
  at::Tensor sums = at::zeros({buckets + 1}, at::kDouble), counts = at::zeros({buckets + 1}, at::kDouble);
  for (int64_t i = mine; i < source.validation_count(); i += groups) {
    const std::optional<Example> example = source.validation(i, options.order, *group);
    if (!example) break;
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

#include "startrail/train/model/parameters.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <algorithm>

#include "startrail/base/random.h"

namespace startrail {

Shard shard_of(int64_t size, int rank, int ranks) {
  const int64_t units = (size + kShardUnit - 1) / kShardUnit;
  const auto cut = [&](int64_t r) {
    return std::min(size, static_cast<int64_t>(static_cast<__int128>(units) * r / ranks) * kShardUnit);
  };
  return {cut(rank), cut(rank + 1)};
}

int64_t longest_shard(int64_t size, int ranks) {
  int64_t longest = 0;
  for (int rank = 0; rank < ranks; ++rank) longest = std::max(longest, shard_of(size, rank, ranks).size());
  return longest;
}

int64_t count_parameters(const Model& model) {
  int64_t size = 0;
  for (const Parameter& parameter : model.parameters()) size += parameter.size();
  return size;
}

ParameterRow::ParameterRow(Model& model, at::ScalarType compute) : model_(model) {
  const int64_t size = count_parameters(model);
  weights_ = at::empty({size}, compute);
  gradients_ = at::zeros({size}, at::kFloat);
  int64_t offset = 0;
  for (Parameter& parameter : model.parameters()) {
    parameter.value = weights_.narrow(0, offset, parameter.size()).view(parameter.shape).detach().requires_grad_();
    // In float32 autograd adds to the row itself.
    if (compute == at::kFloat)
      parameter.value.mutable_grad() = gradients_.narrow(0, offset, parameter.size()).view(parameter.shape);
    offset += parameter.size();
  }
}

void ParameterRow::collect_gradients() {
  if (weights_.scalar_type() == at::kFloat) return;
  int64_t offset = 0;
  for (Parameter& parameter : model_.parameters()) {
    at::Tensor& gradient = parameter.value.mutable_grad();
    if (gradient.defined()) gradients_.narrow(0, offset, parameter.size()).add_(gradient.flatten());
    gradient.reset();
    offset += parameter.size();
  }
}

void ParameterRow::clear_gradients() { gradients_.zero_(); }

void each_overlap(const Model& model, const Shard& shard, const std::function<void(const Overlap&)>& visit) {
  int64_t offset = 0;
  for (size_t i = 0; i < model.parameters().size(); ++i) {
    const Parameter& parameter = model.parameters()[i];
    const int64_t begin = std::max(offset, shard.begin), end = std::min(offset + parameter.size(), shard.end);
    if (begin < end) visit({parameter, i, begin - offset, begin - shard.begin, end - begin});
    offset += parameter.size();
  }
}

at::Tensor initial_values(const Model& model, uint64_t seed, const Shard& shard) {
  at::Tensor values = at::empty({shard.size()}, at::kFloat);
  each_overlap(model, shard, [&](const Overlap& part) {
    const at::Tensor into = values.narrow(0, part.in_shard, part.count);
    const Parameter& parameter = part.parameter;
    if (parameter.deviation == 0) {
      into.fill_(parameter.mean);
      return;
    }
    const auto generator = at::make_generator<at::CPUGeneratorImpl>(mix(seed, part.index));
    at::Tensor whole = at::empty({parameter.size()}, at::kFloat);
    whole.normal_(parameter.mean, parameter.deviation, generator);
    into.copy_(whole.narrow(0, part.in_parameter, part.count));
  });
  return values;
}

}  // namespace startrail

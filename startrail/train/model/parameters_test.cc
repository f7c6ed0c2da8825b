#include "startrail/train/model/parameters.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "startrail/train/model/llama.h"

namespace startrail {
namespace {

LlamaConfig shape() {
  return {.vocabulary = 11, .dim = 6, .layers = 2, .heads = 2, .key_heads = 1, .head_dim = 4, .hidden = 10};
}

// Leaves `factor` times its place in the row, counted from 1 and modulo 100, as the gradient of every parameter.
void backward(Model& model, double factor) {
  int64_t offset = 0;
  for (Parameter& parameter : model.parameters()) {
    const at::Tensor place = (at::arange(offset, offset + parameter.size()) % 100 + 1).view(parameter.shape);
    (parameter.value * (place * factor).to(parameter.value.scalar_type())).sum().backward();
    offset += parameter.size();
  }
}

at::Tensor places(int64_t size) { return (at::arange(size) % 100 + 1).to(at::kFloat); }

TEST(Shard, CoversTheRowInOrderAndEvenly) {
  for (int64_t size : {int64_t{0}, int64_t{1}, int64_t{5}, int64_t{1000}, int64_t{6'900'000'000'000'000}})
    for (int ranks : {1, 2, 3, 7, 4096}) {
      int64_t end = 0;
      for (int rank = 0; rank < ranks; ++rank) {
        const Shard shard = shard_of(size, rank, ranks);
        EXPECT_EQ(shard.begin, end);
        EXPECT_TRUE(shard.end == size || shard.end % kShardUnit == 0);
        EXPECT_GT(shard.size() + 2 * kShardUnit, size / ranks);
        EXPECT_LE(shard.size(), size / ranks + kShardUnit);
        EXPECT_LE(shard.size(), longest_shard(size, ranks));
        end = shard.end;
      }
      EXPECT_EQ(end, size) << ranks;
    }
}

TEST(InitialValues, DoNotDependOnTheShards) {
  const Llama model(shape());
  const int64_t size = count_parameters(model);
  const at::Tensor whole = initial_values(model, 5, {0, size});
  for (int ranks : {2, 3, 5, 16}) {
    std::vector<at::Tensor> parts;
    for (int rank = 0; rank < ranks; ++rank) {
      const Shard shard = shard_of(size, rank, ranks);
      parts.push_back(initial_values(model, 5, shard));
      EXPECT_EQ(parts.back().numel(), shard.size());
    }
    EXPECT_TRUE(at::equal(at::cat(parts), whole)) << ranks;
  }
  EXPECT_FALSE(at::equal(initial_values(model, 6, {0, size}), whole));
  EXPECT_EQ(initial_values(model, 5, {7, 7}).numel(), 0);
}

TEST(InitialValues, FollowEachParametersMeanAndDeviation) {
  LlamaConfig config = shape();
  config.dim = 64;
  const Llama model(config);
  const at::Tensor row = initial_values(model, 5, {0, count_parameters(model)});
  EXPECT_EQ(row.scalar_type(), at::kFloat);
  int64_t offset = 0;
  std::map<std::string, at::Tensor> values;
  for (const Parameter& parameter : model.parameters()) {
    const at::Tensor value = values[parameter.name] = row.narrow(0, offset, parameter.size());
    offset += parameter.size();
    if (parameter.deviation == 0) {
      EXPECT_TRUE(at::equal(value, at::full_like(value, parameter.mean))) << parameter.name;
    } else {
      EXPECT_NEAR(value.std().item<double>(), parameter.deviation, 0.2 * parameter.deviation) << parameter.name;
      EXPECT_NEAR(value.mean().item<double>(), parameter.mean, 0.3 * parameter.deviation) << parameter.name;
    }
  }
  const std::string rest = ".self_attn.q_proj.weight";
  EXPECT_FALSE(at::equal(values.at("model.layers.0" + rest), values.at("model.layers.1" + rest)));
}

TEST(ParameterRow, BindsEachParameterToItsPart) {
  for (at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    Llama model(shape());
    ParameterRow row(model, type);
    EXPECT_EQ(row.size(), shape().parameters());
    EXPECT_EQ(row.weights().scalar_type(), type);
    row.weights().copy_(places(row.size()));  // later changes show in the parameters
    int64_t offset = 0;
    for (const Parameter& parameter : model.parameters()) {
      EXPECT_TRUE(parameter.value.is_leaf() && parameter.value.requires_grad()) << parameter.name;
      EXPECT_EQ(parameter.value.sizes(), at::IntArrayRef(parameter.shape)) << parameter.name;
      EXPECT_TRUE(at::equal(parameter.value.detach().flatten(), row.weights().narrow(0, offset, parameter.size())));
      offset += parameter.size();
    }
    EXPECT_EQ(offset, row.size());
  }
}

TEST(ParameterRow, AddsFloatGradientsInPlace) {
  Llama model(shape());
  ParameterRow row(model, at::kFloat);
  row.weights().zero_();
  EXPECT_TRUE(at::equal(row.gradients(), at::zeros({row.size()})));
  backward(model, 1);
  EXPECT_TRUE(at::equal(row.gradients(), places(row.size())));
  backward(model, 2);
  row.collect_gradients();  // nothing is left to add
  EXPECT_TRUE(at::equal(row.gradients(), places(row.size()) * 3));
  row.clear_gradients();
  EXPECT_TRUE(at::equal(row.gradients(), at::zeros({row.size()})));
  backward(model, 5);  // the parameters still point to the row
  EXPECT_TRUE(at::equal(row.gradients(), places(row.size()) * 5));
}

TEST(ParameterRow, CollectsNarrowGradientsInFloat) {
  Llama model(shape());
  ParameterRow row(model, at::kBFloat16);
  row.weights().zero_();
  backward(model, 256);
  EXPECT_TRUE(at::equal(row.gradients(), at::zeros({row.size()})));  // until they are collected
  row.collect_gradients();
  EXPECT_TRUE(at::equal(row.gradients(), places(row.size()) * 256));
  for (const Parameter& parameter : model.parameters()) EXPECT_FALSE(parameter.value.grad().defined());
  row.collect_gradients();
  EXPECT_TRUE(at::equal(row.gradients(), places(row.size()) * 256));  // not twice
  backward(model, 1);
  row.collect_gradients();
  EXPECT_TRUE(at::equal(row.gradients(), places(row.size()) * 257));  // no bfloat16 holds 257
  row.clear_gradients();
  EXPECT_TRUE(at::equal(row.gradients(), at::zeros({row.size()})));
}

}  // namespace
}  // namespace startrail

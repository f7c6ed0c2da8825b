// All parameters of a model in one row, so that optimizer state, messages and checkpoint files can be cut anywhere.
#pragma once

#include <functional>

#include <ATen/core/Tensor.h>

#include "startrail/train/model/model.h"

namespace startrail {

// The part of the row a rank looks after. Cut at multiples of kShardUnit, the float32 values of a page: ranks of
// different hosts then never write into the same page of a checkpoint, which a network's file system may not survive.
constexpr int64_t kShardUnit = 1024;
struct Shard {
  int64_t begin = 0, end = 0;
  int64_t size() const { return end - begin; }
};
Shard shard_of(int64_t size, int rank, int ranks);
int64_t longest_shard(int64_t size, int ranks);

// Where a parameter meets a shard: `count` values from `in_parameter` on are those from `in_shard` on.
struct Overlap {
  const Parameter& parameter;
  size_t index;  // of the parameter
  int64_t in_parameter, in_shard, count;
};
// Calls `visit` for every parameter that has values in the shard, in the order of the row.
void each_overlap(const Model& model, const Shard& shard, const std::function<void(const Overlap&)>& visit);

// The row of a model's parameters, in their order, in the type it computes with. Binds the model's parameters to it.
class ParameterRow {
 public:
  ParameterRow(Model& model, at::ScalarType compute);

  int64_t size() const { return weights_.numel(); }
  at::Tensor& weights() { return weights_; }      // [size] in the compute type
  at::Tensor& gradients() { return gradients_; }  // [size] float32

  // Adds what the last backward pass left in the parameters to gradients().
  void collect_gradients();
  void clear_gradients();

 private:
  Model& model_;
  at::Tensor weights_, gradients_;
};

int64_t count_parameters(const Model& model);

// First values of the row's part `shard`, float32: the same whatever the shard.
at::Tensor initial_values(const Model& model, uint64_t seed, const Shard& shard);

}  // namespace startrail

// All parameters of a model in one row, so that optimizer state, messages and checkpoint files can be cut anywhere.
#pragma once

#include <ATen/core/Tensor.h>

#include "startrail/train/model/model.h"

namespace startrail {

// The part of the row a rank looks after.
struct Shard {
  int64_t begin = 0, end = 0;
  int64_t size() const { return end - begin; }
};
Shard shard_of(int64_t size, int rank, int ranks);

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

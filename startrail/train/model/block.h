// One transformer block around attention, with activation checkpointing that never recomputes attention.
#pragma once

#include <array>
#include <functional>
#include <vector>

#include "startrail/train/model/model.h"

namespace startrail {

using Weights = std::vector<at::Tensor>;

// A block in two parts. `before`: x -> q, k, v [1, heads, tokens, dim]. `after`: x and attention's out [tokens, heads *
// dim] -> the block's result. Both are ordinary differentiable code of one device.
struct BlockParts {
  std::function<std::array<at::Tensor, 3>(const at::Tensor& x, const Weights&)> before;
  std::function<at::Tensor(const at::Tensor& x, const at::Tensor& out, const Weights&)> after;
};

// For `before`: [tokens, heads * dim] -> [tokens, heads, dim] -> [1, heads, tokens, dim], views.
at::Tensor heads_of(const at::Tensor& x, int64_t dim);
at::Tensor as_batch(const at::Tensor& x);

// The attention of layer `layer`. With sequence.recompute only x, out and lse are kept for the backward pass; there
// both parts are computed again, and attention's own backward is called on what was kept.
at::Tensor run_block(const BlockParts& block, const at::Tensor& x, const Weights& weights, const Sequence& sequence,
                     int64_t layer);

}  // namespace startrail

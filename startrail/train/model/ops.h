// The parts of a transformer that are not attention, each with a backward of its own that saves as little as it can.
// Rows are tokens: x is [tokens, features] in the compute type, float32 or bfloat16; sums inside are float32.
#pragma once

#include <optional>

#include <ATen/core/Tensor.h>

namespace startrail {

// x * weight^T, plus a bias [out] where one is given; weight [out, in]. bfloat16 is computed in float32 where the
// processor has no bfloat16 products, which is many times faster there and no less exact.
at::Tensor dense(const at::Tensor& x, const at::Tensor& weight, const std::optional<at::Tensor>& bias = {});

// Rows of weight [vocabulary, features]; their gradients are summed in float32.
at::Tensor embed(const at::Tensor& tokens, const at::Tensor& weight);

// x / rms(x) * weight.
at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps);

// silu(gate) * up.
at::Tensor swiglu(const at::Tensor& gate, const at::Tensor& up);

// Rotates the pairs (i, i + dim/2) of x [tokens, heads, dim] by angles given as cos and sin [tokens, dim/2] float32.
struct Rotation {
  at::Tensor cos, sin;
};
at::Tensor rotate(const at::Tensor& x, const Rotation& rotation);

struct TokenLoss {
  at::Tensor sum;   // scalar, differentiable once: the loss of all tokens that have a target
  at::Tensor each;  // [tokens] float32, 0 where there is no target
};
// Cross entropy of x * weight^T against targets [tokens] (negative: none), `chunk` tokens at a time, so that the logits
// of all tokens never exist. With gradients wanted they are computed on the way, chunk by chunk.
TokenLoss head_loss(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& targets, int64_t chunk);

}  // namespace startrail

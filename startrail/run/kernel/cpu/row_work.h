// What a processor level gives to the parts of a model that are not attention (train/model/ops.cc): each one pass over
// rows [begin, end), so that callers share rows among threads as they like. Elements are float32, or bfloat16 where
// `bfloat16` says so, dense unless strides are given; all sums are float32.
#pragma once

#include <cstdint>

namespace startrail::cpu {

// x [rows, dim] and its weight [dim]; inverse [rows] is 1 / rms(x), written in the forward pass.
struct NormRows {
  bool bfloat16;
  int64_t dim;
  const void *x, *weight;
  float* inverse;
};

// x [rows, heads, dim] with strides `row` and `head` in elements; cos and sin [rows, dim / 2]; `sign` of the angles.
struct RotateRows {
  bool bfloat16;
  int64_t heads, dim;
  const void* x;
  int64_t row, head;
  const float *cos, *sin;
  float sign;
};

// One row of elements.
struct GatedRow {
  bool bfloat16;
  const void *gate, *up;
};

struct RowWork {
  // y = x * inverse * weight.
  void (*rms_norm)(const NormRows& work, float eps, void* y, int64_t begin, int64_t end);
  // dx, and what the rows add to dweight [dim].
  void (*rms_norm_backward)(const NormRows& work, const void* dy, void* dx, float* dweight, int64_t begin, int64_t end);
  // y: x with its pairs (i, i + dim/2) rotated.
  void (*rotate)(const RotateRows& work, void* y, int64_t begin, int64_t end);
  // y = silu(gate) * up.
  void (*swiglu)(const GatedRow& work, void* y, int64_t begin, int64_t end);
  void (*swiglu_backward)(const GatedRow& work, const void* dy, void* dgate, void* dup, int64_t begin, int64_t end);
};

}  // namespace startrail::cpu

// Tile kernels: attention of one query block to one key block, added to a running result. Used by the executor, which
// does not know which kernel it calls. What a kernel must do is what the reference does; tests compare them.
// A device's kernels lie in a folder named after it (cpu/), whose kernels() lists them, fastest first. cuda/ would join
// as a second list in choose_kernel: each kernel's fits() says on which device it computes, and nothing else changes.
#pragma once

#include <functional>
#include <string>
#include <string_view>

#include <ATen/core/Tensor.h>

#include "startrail/layout/tile.h"

namespace startrail {

// Tensors may have any strides but for a dense last dimension; heads may be a multiple of key heads (GQA, not
// repeated).
struct AttendInput {
  at::Tensor q;                              // [batch, heads, queries, dim]
  at::Tensor k, v;                           // [batch, key heads, keys, dim]
  Pieces queries, keys;                      // the tokens the rows are, in order
  const Band* band;                          // who sees whom
  double scale;                              // of the scores
  std::function<void()> between_tiles = {};  // may throw, to end long work early
};

// Softmax state: `out` is normalised by what has been seen so far, and lse = -inf where nothing has.
struct Running {
  at::Tensor out;  // [batch, heads, queries, dim] float32 (float64 for float64 inputs)
  at::Tensor lse;  // [batch, heads, queries]
};

struct AttendBackwardInput {
  AttendInput forward;
  at::Tensor dout;        // [batch, heads, queries, dim]
  at::Tensor lse, delta;  // [batch, heads, queries]: final lse, and rowsum(dout * out)
};

struct Gradients {
  at::Tensor dq;      // [batch, heads, queries, dim] float32 (float64 for float64 inputs)
  at::Tensor dk, dv;  // [batch, key heads, keys, dim]
};

// Sizes of one call.
struct CallSize {
  int64_t batch = 1, heads = 1, key_heads = 1, queries = 0, keys = 0, dim = 64;
  int element_bytes = 4;  // of q, k and v
  bool backward = false;
};

class Kernel {
 public:
  virtual ~Kernel() = default;
  virtual std::string name() const = 0;
  // True when it computes this type on this device.
  virtual bool fits(at::ScalarType type, at::Device device, int64_t dim) const = 0;
  // The most bytes that one call makes for itself, beside what it adds to.
  virtual int64_t scratch_bytes(const CallSize& size, int threads) const = 0;
  // running += attention of the input's queries to its keys; empty sides are allowed.
  virtual void attend(const AttendInput& input, Running& running) const = 0;
  // gradients += this block's share. Rows with lse = -inf add nothing.
  virtual void attend_backward(const AttendBackwardInput& input, Gradients& gradients) const = 0;
};

// Plain tensor operations on any device, computed in the type of the running result: slow, obviously right, the
// yardstick of the others.
const Kernel& reference_kernel();

// "auto": the fastest that fits. UserError when a named one does not fit or is not known.
const Kernel& choose_kernel(std::string_view name, at::ScalarType type, at::Device device, int64_t dim);

// Adds a partial result to a running one, by lse: stable for any lse below +inf, and for -inf on either side or both.
void merge_partial(Running& running, const at::Tensor& out, const at::Tensor& lse);

}  // namespace startrail

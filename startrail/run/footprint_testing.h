// For tests: what a rank of a trial may hold by its plan.
#pragma once

#include <algorithm>

#include "startrail/plan/make.h"
#include "startrail/plan/memory.h"
#include "startrail/run/trial.h"

namespace startrail {

// Everything that a trial holds on one rank: blocks and kernel scratch by the plan, and the caller's own tensors.
inline int64_t expected_bytes(const AttentionOptions& options, const Problem& p, at::ScalarType type, int rank,
                              int threads) {
  const int slices = options.grid.heads;
  const auto pass_bytes = [&](Pass pass) {
    return peak_bytes(make_plan(options.grid, pass), rank, p, [&](int64_t queries, int64_t keys) {
      return choose_kernel("flash", type, at::kCPU, p.dim)
          .scratch_bytes({p.batch, p.heads / slices, key_heads_of_slice(p.key_heads, slices), queries, keys, p.dim,
                          p.element_bytes, pass != Pass::forward},
                         threads);
    });
  };
  const int64_t row = p.batch * p.dim * p.element_bytes;
  const int64_t q = p.queries.tokens(rank) * p.heads * row, k = p.keys.tokens(rank) * p.key_heads * row;
  // With chunks of very different lengths most may be held while a long one is merged, a few rows at a time: values,
  // their products and some numbers of each row. Elsewhere what the kernel holds hides it.
  const int64_t rows = std::min<int64_t>(4096, p.queries.tokens(rank) * p.heads);
  const int64_t merged = options.order == Order::listed ? 4 * rows * (2 * p.dim + 8) : 0;
  // The caller's q, k, v and dout, where they are in the sequence, and in the backward out, where it is not what the
  // forward saved.
  return 2 * q + 2 * k + 8 * (p.queries.tokens(rank) + p.keys.tokens(rank)) +
         std::max(pass_bytes(Pass::forward) + merged, pass_bytes(backward_pass(options, p)) + (slices > 1 ? q : 0));
}

}  // namespace startrail

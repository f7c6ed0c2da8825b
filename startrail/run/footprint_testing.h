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
    return peak_bytes(make_plan(options.grid, pass), rank, p, [&](const Step& attend) {
      return choose_kernel("flash", type, at::kCPU, p.dim)
          .scratch_bytes(
              {p.batch, p.heads / slices, key_heads_of_slice(p.key_heads, slices), p.queries.tokens(attend.in.chunks),
               p.keys.tokens(attend.with.chunks), p.dim, p.element_bytes, pass != Pass::forward},
              threads);
    });
  };
  const int64_t row = p.batch * p.dim * p.element_bytes;
  const int64_t q = p.queries.tokens(rank) * p.heads * row, k = p.keys.tokens(rank) * p.key_heads * row;
  // The caller's q, k, v and dout, where they are in the sequence, and in the backward out, where it is not what the
  // forward saved.
  return 2 * q + 2 * k + 8 * (p.queries.tokens(rank) + p.keys.tokens(rank)) +
         std::max(pass_bytes(Pass::forward), pass_bytes(backward_pass(options, p)) + (slices > 1 ? q : 0));
}

}  // namespace startrail

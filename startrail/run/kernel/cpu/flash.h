// Flash attention on vectors, once for all processor levels.
//
// Lanes are query rows, and every tile is transposed: scores are S[key][query] = K x Q^T, where an element of K is
// broadcast and a row of Q^T is a vector. So maximum, sum and rescaling of a row's softmax are vertical, K needs no
// transposing, and the weights come out as the vectors that the second product, O^T[dim][query] += V^T x P, wants. The
// running (out, lse) is the softmax state itself (maximum lse, sum 1): adding a block to it needs no merging.
#pragma once

#include "startrail/run/kernel/cpu/backward.h"
#include "startrail/run/kernel/cpu/forward.h"
#include "startrail/run/kernel/cpu/packing.h"
#include "startrail/run/kernel/cpu/rows.h"

namespace startrail::cpu {
namespace {  // one copy per level

// What level.h wants.
template <typename Level>
struct Flash {
  using Forwards = ForwardPass<Level>;
  using Backwards = BackwardPass<Level>;

  static void forward(const Forward& work, int64_t begin, int64_t end, void* scratch) {
    if constexpr (Level::kPairs)
      if (work.problem.bfloat16) return Forwards::template run<uint32_t>(work, begin, end, scratch);
    Forwards::template run<float>(work, begin, end, scratch);
  }
  static void backward(const Backward& work, int64_t range, int64_t begin, int64_t end, void* scratch) {
    if constexpr (Level::kPairs)
      if (work.problem.bfloat16) return Backwards::template run<uint32_t>(work, range, begin, end, scratch);
    Backwards::template run<float>(work, range, begin, end, scratch);
  }

  static const startrail::cpu::Level* level(const char* name) {
    static const startrail::cpu::Level made{name,
                                            Forwards::kLanes,
                                            Backwards::kBackwardRows,
                                            forward,
                                            Forwards::scratch_bytes,
                                            backward,
                                            Backwards::scratch_bytes,
                                            RowsOf<Level>::work(),
                                            {Packing<Level>::forward, Packing<Level>::backward}};
    return &made;
  }
};

}  // namespace
}  // namespace startrail::cpu

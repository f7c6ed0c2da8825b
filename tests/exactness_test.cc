// The promise, on a covering set of short sequences. Long ones, and cases drawn at random, are in the long test.
#include "tests/exactness.h"

#include <gtest/gtest.h>

namespace startrail {
namespace {

// Tokens that the ranks do not divide, a prime number, fewer than two a rank, and a multiple of all.
TEST(Exactness, HoldsOnEveryGridOf16AndEveryPairOfSettings) { expect_every_pair({200, 101, 17, 256}); }

TEST(Exactness, HoldsOnOtherRankCounts) {
  for (int ranks : {6, 8, 12, 24, 32}) {
    GridTurns grids(ranks);
    for (int skipped = 0; skipped < ranks / 3; ++skipped) grids.next(ranks, ranks / 2);  // not only the first ones
    Proof proof({.mask = make_mask(mask_names()[ranks % mask_names().size()], 333),
                 .tokens = 333,
                 .heads = ranks,
                 .key_heads = ranks / 2,
                 .seed = static_cast<uint64_t>(ranks)});
    for (size_t s = 0; s < 6; ++s) {
      const Grid grid = grids.next(ranks, ranks / 2);
      EXPECT_EQ(proof.check({.grid = grid,
                             .order = static_cast<Order>(s % 3),
                             .direction = s % 2 ? Direction::queries : Direction::keys,
                             .type = s / 2 % 2 ? at::kBFloat16 : at::kFloat}),
                "");
    }
  }
}

}  // namespace
}  // namespace startrail

// The promise, on long sequences and on cases drawn at random. STARTRAIL_SEED repeats a run, STARTRAIL_CASES changes
// how many are drawn.
#include <gtest/gtest.h>

#include <cstdlib>
#include <random>

#include "startrail/base/text.h"
#include "tests/exactness.h"

namespace startrail {
namespace {

uint64_t from_environment(const char* name, uint64_t fallback) {
  const char* text = std::getenv(name);
  return text ? static_cast<uint64_t>(parse_int(text, name)) : fallback;
}

TEST(ExactnessLong, HoldsOnEveryGridOf16AndEveryPairOfSettings) { expect_every_pair({1000, 1021, 17, 4096}); }

TEST(ExactnessLong, HoldsForRandomCases) {
  const uint64_t seed = from_environment("STARTRAIL_SEED", std::random_device()());
  const size_t wanted = from_environment("STARTRAIL_CASES", 600);
  std::cout << "STARTRAIL_SEED=" << seed << std::endl;
  std::mt19937_64 random(seed);
  const auto pick = [&](const auto& values) { return values[random() % values.size()]; };
  for (size_t cases = 0; cases < wanted;) {
    WholeSequence sequence;
    sequence.tokens = random() % 8 == 0 ? 4096 : 1 + static_cast<int64_t>(random() % 1500);
    if (sequence.tokens < 8) sequence.tokens += 8;
    sequence.mask = make_mask(pick(mask_names()), sequence.tokens);
    sequence.key_heads = pick(std::vector<int64_t>{1, 2, 4, 8});
    sequence.heads = sequence.key_heads * pick(std::vector<int64_t>{1, 2, 8});
    if (sequence.tokens > 2000) sequence.heads = std::min<int64_t>(sequence.heads, 2 * sequence.key_heads);
    sequence.dim = pick(std::vector<int64_t>{4, 8, 20});
    sequence.seed = random() % 1000000;
    Proof proof(sequence);
    const int ranks = pick(std::vector<int>{2, 3, 4, 5, 6, 8, 9, 12, 16, 16, 18, 24, 32});
    const std::vector<Grid> grids = every_grid(ranks);
    for (int tries = 0; tries < 6; ++tries) {
      Split split{pick(grids), pick(std::vector<Order>{Order::contiguous, Order::zigzag, Order::striped}),
                  pick(std::vector<Direction>{Direction::keys, Direction::queries}),
                  pick(std::vector<at::ScalarType>{at::kFloat, at::kBFloat16})};
      if (!heads_fit(split.grid.heads, sequence.heads, sequence.key_heads)) continue;
      std::shuffle(split.grid.order.begin(), split.grid.order.end(), random);
      EXPECT_EQ(proof.check(split), "");
      ++cases;
    }
  }
}

}  // namespace
}  // namespace startrail

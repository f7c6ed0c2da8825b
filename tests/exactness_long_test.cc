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
  RandomCases random(seed);
  for (size_t cases = 0; cases < wanted;) {
    const WholeSequence sequence = random.sequence(/*longest=*/4096);
    Proof proof(sequence);
    const int ranks = random.pick(std::vector<int>{2, 3, 4, 5, 6, 8, 9, 12, 16, 16, 18, 24, 32});
    for (int tries = 0; tries < 6; ++tries)
      if (const auto split = random.split(ranks, sequence)) {
        EXPECT_EQ(proof.check(*split), "");
        ++cases;
      }
  }
}

}  // namespace
}  // namespace startrail

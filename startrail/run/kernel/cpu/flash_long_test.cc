#include <gtest/gtest.h>

#include <iostream>
#include <random>

#include "startrail/run/kernel/cpu/flash_fuzz.h"

namespace startrail {
namespace {

TEST(FlashKernel, MatchesTheReferenceOnThousandsOfRandomShapes) {
  const unsigned seed = std::random_device{}();
  std::cout << "seed " << seed << std::endl;
  for (const Tried& level : tried())
    fuzz_flash(*level.kernel, level.pairs, level.name, seed, level.name == cpu::level_names()[0] ? 2000 : 500);
}

}  // namespace
}  // namespace startrail

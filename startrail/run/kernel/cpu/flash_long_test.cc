#include <gtest/gtest.h>

#include <iostream>
#include <random>

#include "startrail/run/kernel/cpu/flash_fuzz.h"

namespace startrail {
namespace {

TEST(FlashKernel, MatchesTheReferenceOnThousandsOfRandomShapes) {
  const unsigned seed = std::random_device{}();
  std::cout << "seed " << seed << std::endl;
  std::vector<Tried> levels = tried();
  fuzz_flash(levels, seed, 500);
  levels.erase(levels.begin() + 1, levels.end());
  fuzz_flash(levels, seed + 1, 1500);
}

}  // namespace
}  // namespace startrail

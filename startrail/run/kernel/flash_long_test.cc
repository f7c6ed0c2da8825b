#include <gtest/gtest.h>

#include <iostream>
#include <random>

#include "startrail/run/kernel/flash_fuzz.h"

namespace startrail {
namespace {

TEST(FlashKernel, MatchesTheReferenceOnThousandsOfRandomShapes) {
  const unsigned seed = std::random_device{}();
  std::cout << "seed " << seed << std::endl;
  for (const std::string& level : flash_levels())
    fuzz_flash(*make_flash_kernel(flash_level(level)), level == "avx512bf16", level, seed,
               level == flash_levels()[0] ? 2000 : 500);
}

}  // namespace
}  // namespace startrail

#include "startrail/base/numbers.h"

#include <gtest/gtest.h>

namespace startrail {
namespace {

TEST(Numbers, DivisorsAscend) {
  EXPECT_EQ(divisors(1), std::vector<int>{1});
  EXPECT_EQ(divisors(12), (std::vector<int>{1, 2, 3, 4, 6, 12}));
  EXPECT_EQ(divisors(13), (std::vector<int>{1, 13}));
}

}  // namespace
}  // namespace startrail

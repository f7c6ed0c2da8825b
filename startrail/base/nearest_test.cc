#include "startrail/base/nearest.h"

#include <gtest/gtest.h>

namespace startrail {
namespace {

TEST(Nearest, CountsTheLettersToChange) {
  EXPECT_EQ(edit_distance("", ""), 0u);
  EXPECT_EQ(edit_distance("ring", ""), 4u);
  EXPECT_EQ(edit_distance("ring", "rinf"), 1u);
  EXPECT_EQ(edit_distance("startrial", "startrail"), 2u);
  EXPECT_EQ(edit_distance("mesh", "meshes"), 2u);
}

}  // namespace
}  // namespace startrail

#include <gtest/gtest.h>

#include "tests/llama_twin.h"

namespace startrail {
namespace {

TEST(Llama, IsLikeTransformersAndBack) {
  expect_like_transformers_and_back(
      400, {{"startrail:2", true, /*steps=*/true}, {"ulysses", true}, {"heads=2,team=2,ring=1,stripe=2", false}});
}

}  // namespace
}  // namespace startrail

#include <gtest/gtest.h>

#include "tests/llama_twin.h"

namespace startrail {
namespace {

TEST(LlamaLong, IsLikeTransformersAndBack) {
  std::vector<LlamaSplit> splits;
  for (const char* grid : {"startrail:2", "ring", "ulysses", "heads=2,team=2,ring=1,stripe=2"})
    for (bool recompute : {true, false}) splits.push_back({grid, recompute, /*steps=*/recompute});
  expect_like_transformers_and_back(2048, splits);
}

}  // namespace
}  // namespace startrail

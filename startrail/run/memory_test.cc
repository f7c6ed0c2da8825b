#include "startrail/run/memory.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <thread>

namespace startrail {
namespace {

TEST(Memory, ChargesTheThreadThatAllocatedWhoeverFrees) {
  const auto mine = std::make_shared<MemoryAccount>(), other = std::make_shared<MemoryAccount>();
  at::Tensor handed;
  std::thread([&] {
    const MemoryScope scope(other);
    handed = at::empty({1000}, at::kFloat);
    { const at::Tensor brief = at::empty({500}, at::kFloat); }
  }).join();
  {
    const MemoryScope scope(mine);
    const at::Tensor own = at::empty({10}, at::kDouble);
    EXPECT_EQ(mine->bytes, 80);
    EXPECT_EQ(other->bytes, 4000);
    handed.reset();
  }
  EXPECT_EQ(other->bytes, 0);
  EXPECT_EQ(other->peak_bytes, 6000);
  EXPECT_EQ(mine->bytes, 0);
  const at::Tensor after = at::empty({10});
  EXPECT_EQ(mine->peak_bytes, 80);
}

}  // namespace
}  // namespace startrail

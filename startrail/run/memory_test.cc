#include "startrail/run/memory.h"

#include <ATen/ATen.h>
#include <c10/core/Allocator.h>
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

// As oneDNN allocates where a processor multiplies bfloat16: without a handle, freed by the address.
TEST(Memory, ChargesWhatIsFreedByItsAddress) {
  c10::Allocator* plain = c10::GetAllocator(c10::DeviceType::CPU);
  void* before = plain->raw_allocate(100);  // by the allocator as it was
  const auto account = std::make_shared<MemoryAccount>();
  const MemoryScope scope(account);
  c10::Allocator* allocator = c10::GetAllocator(c10::DeviceType::CPU);
  allocator->raw_deallocate(before);
  void* start = allocator->raw_allocate(1000);
  EXPECT_EQ(account->bytes, 1000);
  allocator->raw_deallocate(start);
  EXPECT_EQ(account->bytes, 0);
  EXPECT_EQ(account->peak_bytes, 1000);
}

}  // namespace
}  // namespace startrail

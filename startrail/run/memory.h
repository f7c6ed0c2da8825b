// How much tensor memory each rank holds. libtorch counts nothing on the CPU, and ranks are threads of one process, so
// the CPU allocator is wrapped and every allocation is charged to the rank whose thread made it.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

namespace startrail {

struct MemoryAccount {
  std::atomic<int64_t> bytes{0};
  std::atomic<int64_t> peak_bytes{0};
};

// Charges what this thread allocates from now on to `account`, until the scope ends; memory freed later, by any thread,
// is still given back to it. The first scope wraps the allocator, which stays wrapped.
class MemoryScope {
 public:
  explicit MemoryScope(std::shared_ptr<MemoryAccount> account);
  ~MemoryScope();
  MemoryScope(const MemoryScope&) = delete;
  MemoryScope& operator=(const MemoryScope&) = delete;

 private:
  std::shared_ptr<MemoryAccount> before_;
};

}  // namespace startrail

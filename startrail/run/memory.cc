#include "startrail/run/memory.h"

#include <c10/core/Allocator.h>
#include <array>
#include <mutex>
#include <unordered_map>
#include <utility>

namespace startrail {
namespace {

thread_local std::shared_ptr<MemoryAccount> current;

// Who pays for an allocation.
struct Charge {
  std::shared_ptr<MemoryAccount> account;
  int64_t bytes;
};

// By address. It cannot travel with the allocation: oneDNN frees by address alone (Allocator::raw_deallocate), also
// what was allocated before the allocator was wrapped.
class Charges {
 public:
  void add(const void* start, Charge charge) {
    Shard& shard = shard_of(start);
    std::lock_guard lock(shard.mutex);
    shard.charges[start] = std::move(charge);
  }
  void give_back(const void* start) {
    Shard& shard = shard_of(start);
    std::lock_guard lock(shard.mutex);
    const auto found = shard.charges.find(start);
    if (found == shard.charges.end()) return;
    found->second.account->bytes -= found->second.bytes;
    shard.charges.erase(found);
  }

 private:
  struct Shard {
    std::mutex mutex;
    std::unordered_map<const void*, Charge> charges;
  };
  Shard& shard_of(const void* start) { return shards_[reinterpret_cast<uintptr_t>(start) / 64 % shards_.size()]; }
  std::array<Shard, 64> shards_;  // ranks allocate at the same time
};

Charges& charges() {
  static auto* all = new Charges;  // tensors may be freed after static objects are gone
  return *all;
}

c10::Allocator* plain = nullptr;  // the allocator before it was wrapped

void give_back(void* start) {
  charges().give_back(start);
  plain->raw_deallocate(start);
}

class ChargingAllocator : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    if (!current || bytes == 0) return plain->allocate(bytes);
    void* start = plain->raw_allocate(bytes);
    charges().add(start, {current, static_cast<int64_t>(bytes)});
    const int64_t held = current->bytes += static_cast<int64_t>(bytes);
    int64_t peak = current->peak_bytes;
    while (held > peak && !current->peak_bytes.compare_exchange_weak(peak, held)) {
    }
    return {start, start, &give_back, c10::Device(c10::DeviceType::CPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &give_back; }
  void copy_data(void* to, const void* from, size_t bytes) const override { plain->copy_data(to, from, bytes); }
};

}  // namespace

MemoryScope::MemoryScope(std::shared_ptr<MemoryAccount> account) {
  static std::once_flag once;
  std::call_once(once, [] {
    static ChargingAllocator allocator;
    plain = c10::GetAllocator(c10::DeviceType::CPU);
    c10::SetAllocator(c10::DeviceType::CPU, &allocator, /*priority=*/1);
  });
  before_ = std::exchange(current, std::move(account));
}

MemoryScope::~MemoryScope() { current = std::move(before_); }

}  // namespace startrail

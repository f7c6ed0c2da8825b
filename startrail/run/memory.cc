#include "startrail/run/memory.h"

#include <c10/core/Allocator.h>
#include <mutex>
#include <utility>

namespace startrail {
namespace {

thread_local std::shared_ptr<MemoryAccount> current;

// Travels with an allocation: who pays, and the real allocation.
struct Charge {
  std::shared_ptr<MemoryAccount> account;
  int64_t bytes;
  c10::DataPtr data;
};

void give_back(void* pointer) {
  auto* charge = static_cast<Charge*>(pointer);
  charge->account->bytes -= charge->bytes;
  delete charge;
}

class ChargingAllocator : public c10::Allocator {
 public:
  explicit ChargingAllocator(c10::Allocator* inner) : inner_(inner) {}

  c10::DataPtr allocate(size_t bytes) override {
    c10::DataPtr data = inner_->allocate(bytes);
    if (!current || bytes == 0) return data;
    const int64_t held = current->bytes += static_cast<int64_t>(bytes);
    int64_t peak = current->peak_bytes;
    while (held > peak && !current->peak_bytes.compare_exchange_weak(peak, held)) {
    }
    void* start = data.get();
    const c10::Device device = data.device();
    auto* charge = new Charge{current, static_cast<int64_t>(bytes), std::move(data)};
    return {start, charge, &give_back, device};
  }
  void copy_data(void* to, const void* from, size_t bytes) const override { inner_->copy_data(to, from, bytes); }

 private:
  c10::Allocator* inner_;
};

}  // namespace

MemoryScope::MemoryScope(std::shared_ptr<MemoryAccount> account) {
  static std::once_flag once;
  std::call_once(once, [] {
    static ChargingAllocator allocator(c10::GetAllocator(c10::DeviceType::CPU));
    c10::SetAllocator(c10::DeviceType::CPU, &allocator, /*priority=*/1);
  });
  before_ = std::exchange(current, std::move(account));
}

MemoryScope::~MemoryScope() { current = std::move(before_); }

}  // namespace startrail

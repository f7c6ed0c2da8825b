// A counting semaphore for computing ranks; see Group::compute.
#pragma once

#include <condition_variable>
#include <mutex>

namespace startrail {

class ComputeSlots {
 public:
  explicit ComputeSlots(int slots) : free_(slots) {}
  void acquire() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return free_ > 0; });
    --free_;
  }
  void release() {
    {
      std::lock_guard lock(mutex_);
      ++free_;
    }
    changed_.notify_one();
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  int free_;
};

}  // namespace startrail

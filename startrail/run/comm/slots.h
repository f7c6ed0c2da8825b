// How many ranks of this process may compute at once, so that many ranks share few cores without crowding them; and the
// way to stop those that compute or wait for their turn.
#pragma once

#include <condition_variable>
#include <mutex>
#include <optional>
#include <string>

#include "startrail/base/error.h"

namespace startrail {

class ComputeSlots {
 public:
  explicit ComputeSlots(int slots) : free_(slots) {}

  // Waits for a free slot; ClusterError once aborted.
  void acquire() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return free_ > 0 || error_; });
    if (error_) throw ClusterError(*error_);
    --free_;
  }
  void release() {
    {
      std::lock_guard lock(mutex_);
      ++free_;
    }
    changed_.notify_one();
  }
  // ClusterError once aborted; asked between tiles.
  void check() {
    std::lock_guard lock(mutex_);
    if (error_) throw ClusterError(*error_);
  }
  void abort(const std::string& reason) {
    {
      std::lock_guard lock(mutex_);
      if (!error_) error_ = reason;
    }
    changed_.notify_all();
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  int free_;
  std::optional<std::string> error_;
};

// One of the slots, while this lives; nothing where there are none.
class Turn {
 public:
  explicit Turn(ComputeSlots* slots) : slots_(slots) {
    if (slots_) slots_->acquire();
  }
  ~Turn() {
    if (slots_) slots_->release();
  }
  Turn(const Turn&) = delete;
  Turn& operator=(const Turn&) = delete;

 private:
  ComputeSlots* slots_;
};

}  // namespace startrail

// How many of the ranks that share some cores may compute at once, so that many share few without crowding them; and
// the way to stop those that compute or wait for their turn. The ranks are threads of this process, or processes that
// share the semaphore.
#pragma once

#include <semaphore.h>

#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "startrail/base/error.h"
#include "startrail/base/trace.h"

namespace startrail {

class ComputeSlots {
 public:
  // Of this process alone.
  explicit ComputeSlots(int slots) : ComputeSlots(std::shared_ptr<sem_t>(new sem_t, destroy), slots) {
    sem_init(semaphore_.get(), /*pshared=*/0, static_cast<unsigned>(slots));
  }
  // Of all processes that have this semaphore, where it stands at `slots`.
  ComputeSlots(std::shared_ptr<sem_t> semaphore, int slots) : semaphore_(std::move(semaphore)), slots_(slots) {}

  // Waits for a free slot; ClusterError once aborted.
  void acquire() {
    {
      std::lock_guard lock(mutex_);
      if (error_) throw ClusterError(*error_);
      ++waiting_;
    }
    while (sem_wait(semaphore_.get()) != 0) {  // a signal came between
    }
    std::unique_lock lock(mutex_);
    --waiting_;
    if (!error_) return;
    lock.unlock();
    release();
    throw ClusterError(*error_);
  }
  void release() { sem_post(semaphore_.get()); }
  // Waits for those who have to stop computing; for one of all who share the slots.
  void resize(int slots) {
    for (; slots_ > slots; --slots_) acquire();
    for (; slots_ < slots; ++slots_) release();
  }
  // ClusterError once aborted; asked between tiles.
  void check() {
    std::lock_guard lock(mutex_);
    if (error_) throw ClusterError(*error_);
  }
  void abort(const std::string& reason) {
    std::lock_guard lock(mutex_);
    if (error_) return;
    error_ = reason;
    for (int i = 0; i < waiting_; ++i) release();  // nobody may be left to do so
  }

 private:
  static void destroy(sem_t* semaphore) {
    sem_destroy(semaphore);
    delete semaphore;
  }

  std::shared_ptr<sem_t> semaphore_;
  int slots_;
  std::mutex mutex_;
  int waiting_ = 0;  // ranks of this process
  std::optional<std::string> error_;
};

// One of the slots, while this lives; nothing where there are none. The time until it is free goes into the trace.
class Turn {
 public:
  Turn(ComputeSlots* slots, RankTrace* trace) : slots_(slots) {
    if (!slots_) return;
    const double start_us = trace ? trace->now_us() : 0;
    slots_->acquire();
    if (trace) trace->add_wait({"turn", TraceKind::turn, start_us, trace->now_us()});
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

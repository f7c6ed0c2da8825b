// Batches on their way from the reader through the encoders to the writer, who gets them in the reader's order. Few are
// on the way at a time, so memory is bounded.
#pragma once

#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>

#include "startrail/train/data/tokenize/batch_reader.h"

namespace startrail {

class Conveyor {
 public:
  explicit Conveyor(size_t most) : most_(most) {}

  // The reader's: waits for room; false when stopped. After the last one it closes.
  bool put(std::shared_ptr<Batch> batch) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return stopped_ || order_.size() < most_; });
    if (stopped_) return false;
    order_.push_back(batch);
    waiting_.push_back(std::move(batch));
    changed_.notify_all();
    return true;
  }
  void close() { set(closed_); }

  // An encoder's: null when there will be no more.
  std::shared_ptr<Batch> take() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return stopped_ || closed_ || !waiting_.empty(); });
    if (stopped_ || waiting_.empty()) return nullptr;
    std::shared_ptr<Batch> batch = std::move(waiting_.front());
    waiting_.pop_front();
    return batch;
  }
  void done(Batch& batch) { set(batch.done); }

  // The writer's: the next in order, when it is done; null after the last one, or when stopped.
  std::shared_ptr<Batch> next() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return stopped_ || (order_.empty() ? closed_ : order_.front()->done); });
    if (stopped_ || order_.empty()) return nullptr;
    std::shared_ptr<Batch> batch = std::move(order_.front());
    order_.pop_front();
    changed_.notify_all();
    return batch;
  }

  // Makes everyone end.
  void stop() { set(stopped_); }

 private:
  void set(bool& flag) {
    const std::lock_guard lock(mutex_);
    flag = true;
    changed_.notify_all();
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::shared_ptr<Batch>> order_, waiting_;
  size_t most_;
  bool closed_ = false, stopped_ = false;
};

}  // namespace startrail

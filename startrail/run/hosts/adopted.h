// A group of processes that someone else connected over Gloo, such as PyTorch's: watched over as our own are, so that a
// rank that dies, falls silent or does something else than the others is named on all of them. Used by
// python/operators. It never ends a process, and leaves the caller's own messages alone.
#pragma once

#include <chrono>
#include <memory>
#include <mutex>
#include <string>

#include "startrail/run/comm/group.h"
#include "startrail/run/hosts/gloo.h"
#include "startrail/run/hosts/shared_page.h"
#include "startrail/run/hosts/watch.h"

namespace startrail {

class AdoptedGroup {
 public:
  // All ranks of the backend make theirs at the same time, within `timeout`, which is also how long a rank may be
  // silent or wait for others that do something else. `master` is a host that all ranks reach: the watch listens on the
  // address that leads there. ClusterError when some rank does not come.
  AdoptedGroup(c10::intrusive_ptr<c10d::Backend> backend, const std::string& master, std::chrono::milliseconds timeout);
  ~AdoptedGroup();

  Group& group() { return *group_; }

  // While it lives this thread is in a call that all ranks make, the others in the same order. `what` is said of this
  // rank when it is lost in it; it and `key` must be the same on all ranks: messages of calls with other keys or
  // numbers do not match.
  class Call {
   public:
    Call(AdoptedGroup& adopted, std::shared_ptr<const std::string> what, size_t key);
    ~Call();
    Call(const Call&) = delete;
    Call& operator=(const Call&) = delete;

   private:
    AdoptedGroup& adopted_;
    std::unique_lock<std::mutex> turn_;
  };

  // This rank cannot finish a call: the others get to know why.
  void fail(const std::string& why);

 private:
  void meet(const std::string& master, std::chrono::milliseconds timeout);
  Doing doing() const;

  GlooWorld gloo_;
  std::shared_ptr<ComputeSlots> slots_;
  std::unique_ptr<SharedPage> page_;
  std::unique_ptr<Group> group_;
  std::mutex turn_;  // of calls
  int64_t calls_ = 0;

  mutable std::mutex mutex_;
  std::shared_ptr<const std::string> what_;
  int64_t number_ = 0;
  std::unique_ptr<Watch> watch_;  // last: its thread uses what is above
};

}  // namespace startrail

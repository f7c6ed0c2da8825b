// The one door to c10d: sends and receives of a set of ranks, counted by kind and by peer, with the time spent waiting.
// The executor talks to this; nothing outside comm/ touches c10d.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <vector>

#include <ATen/core/Tensor.h>

#include "startrail/plan/volume.h"
#include "startrail/run/trace.h"

namespace c10d {
class Backend;
class Work;
}  // namespace c10d

namespace startrail {

class ComputeSlots;

// A send or receive under way. Keeps its tensor alive.
struct Pending {
  c10::intrusive_ptr<c10d::Work> work;
  at::Tensor tensor;
  Traffic kind = Traffic::p2p;
  int peer = -1;
  double posted_us = -1;  // for the trace; -1 when nothing is recorded
};

struct Count {
  int64_t sent_bytes = 0;
  int64_t sent_messages = 0;
  double wait_seconds = 0;  // for messages from or to this peer
};

class Group {
 public:
  explicit Group(c10::intrusive_ptr<c10d::Backend> backend, std::shared_ptr<ComputeSlots> slots = nullptr);
  ~Group();

  int rank() const;
  int size() const;

  // The `count` consecutive ranks from `first` on, this one among them, as a group with counts of its own: the ranks
  // that share a sequence when there are several. It talks through the same backend; messages between two ranks keep
  // the order in which they are posted, whichever of the two groups posts them.
  std::shared_ptr<Group> part(int first, int count) const;

  // Post a message; `tensor` must be contiguous and stay untouched until it is waited for or done.
  // Messages between two ranks with the same tag arrive in the order sent.
  Pending send(const at::Tensor& tensor, int to, int tag, Traffic kind);
  Pending receive(const at::Tensor& tensor, int from, int tag, Traffic kind);
  void wait(const Pending& pending);
  static bool done(const Pending& pending);

  // Everyone's `mine`, in rank order. For small things such as sums and flags: by single messages.
  std::vector<at::Tensor> all_gather(const at::Tensor& mine);
  std::vector<double> all_gather(double mine);

  // Of the whole group, not of a part.
  void barrier();

  // Held while computing; waits for a free slot where ranks share cores.
  class Turn {
   public:
    explicit Turn(ComputeSlots* slots) : slots_(slots) {}
    ~Turn();
    Turn(const Turn&) = delete;
    Turn& operator=(const Turn&) = delete;

   private:
    ComputeSlots* slots_;
  };
  Turn compute();
  // Throws when another rank of this process has failed; asked between tiles, so that long work ends soon.
  void check_alive() const;

  // What this rank sent, waited for and was busy with since the last reset.
  struct Counts {
    std::map<std::pair<Traffic, int>, Count> messages;  // by kind and peer
    std::map<Op, double> busy_seconds;                  // by step: processor time of the rank's own thread
    Volume sent() const;
    double wait_seconds() const;  // for messages
  };
  const Counts& counts() const { return counts_; }
  void reset_counts() { counts_ = {}; }

  // Runs `body` and counts its processor time as `op`'s.
  void timed(Op op, const std::function<void()>& body);

  // Where steps and messages are written down from now on; null: nowhere.
  void record_to(std::shared_ptr<RankTrace> trace) { trace_ = std::move(trace); }
  RankTrace* trace() const { return trace_.get(); }

 private:
  c10::intrusive_ptr<c10d::Backend> backend_;
  std::shared_ptr<ComputeSlots> slots_;
  int first_ = 0, size_;  // this group's ranks within the backend's
  Counts counts_;
  std::shared_ptr<RankTrace> trace_;
};

}  // namespace startrail

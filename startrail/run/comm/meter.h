// What a rank sent, waited for and was busy with, by kind, peer and step; and the trace these are written down in, if
// there is one. Every group has one of its own.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <utility>

#include "startrail/base/trace.h"
#include "startrail/plan/volume.h"

namespace startrail {

struct Count {
  int64_t sent_bytes = 0;
  int64_t sent_messages = 0;
  double wait_seconds = 0;  // for messages from or to this peer
};

struct Counts {
  std::map<std::pair<Traffic, int>, Count> messages;  // by kind and peer
  std::map<Op, double> busy_seconds;                  // by step: processor time of the rank's own thread
  double control_wait_seconds = 0;                    // for flags and sums, which are in no other number here

  Volume sent() const;
  double wait_seconds() const;  // for messages of all kinds
};

class Meter {
 public:
  const Counts& counts() const { return counts_; }
  void reset() { counts_ = {}; }

  void sent(Traffic kind, int peer, int64_t bytes);
  void waited(Traffic kind, int peer, double seconds) { counts_.messages[{kind, peer}].wait_seconds += seconds; }
  // From `start_us`, by the trace's clock, until now.
  void waited_for_control(double start_us) {
    const double end_us = RankTrace::now_us();
    counts_.control_wait_seconds += (end_us - start_us) * 1e-6;
    if (trace_) trace_->add_wait({"wait for all", TraceKind::wait, start_us, end_us});
  }
  // Runs `body` and counts its processor time as `op`'s; a trace also gets its label.
  void timed(Op op, const TraceLabel* label, const std::function<void()>& body);
  // Whether processor time is counted: asking for it takes as long as a small step.
  void count_busy(bool counts) { counts_busy_ = counts; }

  // Where steps and messages are written down from now on; null: nowhere.
  void record_to(std::shared_ptr<RankTrace> trace) { trace_ = std::move(trace); }
  RankTrace* trace() const { return trace_.get(); }
  const std::shared_ptr<RankTrace>& shared_trace() const { return trace_; }

 private:
  Counts counts_;
  bool counts_busy_ = true;
  std::shared_ptr<RankTrace> trace_;
};

}  // namespace startrail

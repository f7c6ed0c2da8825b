#include "startrail/run/comm/meter.h"

#include <ctime>

#include "startrail/plan/text.h"

namespace startrail {
namespace {

double thread_seconds() {
  timespec time{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

}  // namespace

Volume Counts::sent() const {
  Volume volume;
  for (const auto& [key, count] : messages) volume[key.first] += count.sent_bytes;
  return volume;
}

double Counts::wait_seconds() const {
  double seconds = control_wait_seconds;
  for (const auto& [key, count] : messages) seconds += count.wait_seconds;
  return seconds;
}

void Meter::sent(Traffic kind, int peer, int64_t bytes) {
  Count& count = counts_.messages[{kind, peer}];
  count.sent_bytes += bytes;
  ++count.sent_messages;
}

void Meter::timed(Op op, const TraceLabel* label, const std::function<void()>& body) {
  const double start = thread_seconds(), start_us = trace_ ? trace_->now_us() : 0;
  body();
  counts_.busy_seconds[op] += thread_seconds() - start;
  if (trace_) trace_->add({to_text(op), start_us, trace_->now_us(), label ? *label : TraceLabel{}});
}

}  // namespace startrail

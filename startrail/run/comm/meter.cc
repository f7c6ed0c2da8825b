#include "startrail/run/comm/meter.h"

#include "startrail/base/system.h"
#include "startrail/plan/text.h"

namespace startrail {
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
  if (!counts_busy_ && !trace_) return body();
  const double start = clock_seconds(CLOCK_THREAD_CPUTIME_ID), start_us = trace_ ? trace_->now_us() : 0;
  body();
  counts_.busy_seconds[op] += clock_seconds(CLOCK_THREAD_CPUTIME_ID) - start;
  if (trace_)
    trace_->add({to_text(op), op == Op::attend || op == Op::delta ? TraceKind::compute : TraceKind::communicate,
                 start_us, trace_->now_us(), label ? *label : TraceLabel{}});
}

}  // namespace startrail

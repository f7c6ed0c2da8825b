// What only the system knows: this host's name, and its clocks.
#pragma once

#include <ctime>
#include <string>

namespace startrail {

std::string host_name();

// Seconds of a clock, such as CLOCK_MONOTONIC or CLOCK_THREAD_CPUTIME_ID. May be called by handlers of signals.
double clock_seconds(clockid_t clock);

}  // namespace startrail

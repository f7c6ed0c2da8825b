// What only the system knows: this host's name, its clocks, and where the user's programs keep what they found out.
#pragma once

#include <ctime>
#include <filesystem>
#include <string>

namespace startrail {

std::string host_name();

// Seconds of a clock, such as CLOCK_MONOTONIC or CLOCK_THREAD_CPUTIME_ID. May be called by handlers of signals.
double clock_seconds(clockid_t clock);

// The user's folder for what a program can find out again: $XDG_CACHE_HOME/startrail, or ~/.cache/startrail; "" where
// neither is known. It need not be there.
std::filesystem::path cache_folder();

}  // namespace startrail

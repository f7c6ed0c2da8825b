// How processes that know only an address become ranks that know each other: they meet at a store, agree on who is of
// this start of the job and not of one before it, and tell each other where they are. The store serves for that, and
// for long texts before the first message; it is not used while the job runs, since a store that does not answer cannot
// be waited for with a limit.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <torch/csrc/distributed/c10d/Store.hpp>

#include "startrail/run/hosts/launched.h"
#include "startrail/run/hosts/net.h"

namespace startrail {

// What a rank says of itself.
struct ProcessInfo {
  std::string node;        // STARTRAIL_NODE, or the host's name
  std::string boot;        // the same for all processes of one kernel: they share its cores and memory
  std::vector<int> cores;  // this process may run on
  std::string address;     // the one it listens on
  std::string disk;        // the same for all processes that see the same files under the same names
};
ProcessInfo make_info(const Launched& launched);

struct Meeting {
  c10::intrusive_ptr<c10d::Store> whole;  // as the launcher keeps it
  c10::intrusive_ptr<c10d::Store> store;  // the part of it for this start of the job alone
  std::string word;                       // that only its ranks know
  std::vector<ProcessInfo> processes;     // by rank
  bool restarted = false;                 // the same launcher started this job before, and it came to work (begin)
  Socket watch;                           // rank 0's listens for the watch's lines; others are connected to it
};

// `version` must be the same everywhere. ClusterError when some do not come until then; UserError when what they say
// does not go together.
Meeting meet(const Launched& launched, const std::string& version, std::chrono::steady_clock::time_point until);

// Notes that the job works from now on, in case it is started again.
void begin(c10d::Store& store);

// A text of any length under a key.
void put(c10d::Store& store, const std::string& key, const std::string& text);
// Waits for what was put under a key. `check` is called now and then, and may throw; ClusterError when the store is
// gone.
std::string wait_for_key(c10d::Store& store, const std::string& key, const std::function<void()>& check);

}  // namespace startrail

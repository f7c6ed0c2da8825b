// Runs the ranks of a local world, one thread each.
#pragma once

#include <functional>
#include <memory>

#include "startrail/run/comm/group.h"

namespace startrail {

// Calls `body` once per rank and returns when all are done. `threads` is the total for all ranks: each computes with
// threads / ranks of them, and with more ranks than threads that many compute at a time. When a rank throws, the others
// stop at their next message, wait, turn or tile, and the first error is thrown here.
void run_ranks(int ranks, int threads, const std::function<void(const std::shared_ptr<Group>&)>& body);

}  // namespace startrail

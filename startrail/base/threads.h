// Threads that end well: all are joined whatever happens, and the first error reaches the caller.
#pragma once

#include <exception>
#include <functional>

namespace startrail {

// Runs body(0) ... body(count - 1), each on a thread of its own, and returns when all have ended. The first error is
// thrown here; `stop` is called with it as soon as it happens, to make the others end. ClusterError when the system
// gives no more threads.
void run_threads(int count, const std::function<void(int)>& body,
                 const std::function<void(int index, const std::exception_ptr&)>& stop = {});

// Cores this process may run on, 1 or more: those of the machine that taskset, a batch system or a container left to
// it.
int available_cores();

}  // namespace startrail

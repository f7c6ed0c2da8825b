#include "startrail/base/threads.h"

#include <sched.h>

#include <algorithm>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

#include "startrail/base/error.h"

namespace startrail {

void run_threads(int count, const std::function<void(int)>& body,
                 const std::function<void(int, const std::exception_ptr&)>& stop) {
  std::mutex mutex;
  std::exception_ptr first;
  const auto failed = [&](int index) {
    std::lock_guard lock(mutex);
    if (first) return;
    first = std::current_exception();
    if (stop) stop(index, first);
  };
  std::vector<std::thread> threads;
  threads.reserve(count);
  for (int index = 0; index < count; ++index) {
    try {
      threads.emplace_back([&, index] {
        try {
          body(index);
        } catch (...) {
          failed(index);
        }
      });
    } catch (const std::system_error& error) {
      try {
        throw ClusterError(cat("the system gives only ", index, " of ", count, " threads: ", error.what()));
      } catch (...) {
        failed(index);
      }
      break;
    }
  }
  for (std::thread& thread : threads) thread.join();
  if (first) std::rethrow_exception(first);
}

int available_cores() {
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof set, &set) == 0) return std::max(1, CPU_COUNT(&set));
  return std::max(1, static_cast<int>(std::thread::hardware_concurrency()));  // more cores than the set holds
}

}  // namespace startrail

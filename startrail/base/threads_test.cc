#include "startrail/base/threads.h"

#include <gtest/gtest.h>

#include <atomic>
#include <stdexcept>
#include <thread>

namespace startrail {
namespace {

TEST(Threads, RunEachIndexOnce) {
  std::atomic<int> sum{0};
  run_threads(10, [&](int index) { sum += index; });
  EXPECT_EQ(sum, 45);
  run_threads(0, [&](int) { FAIL(); });
}

TEST(Threads, ThrowTheFirstErrorAfterStoppingTheOthers) {
  std::atomic<bool> stopped{false};
  std::atomic<int> ended{0};
  const auto body = [&](int index) {
    if (index == 3) throw 42;  // anything may be thrown
    while (!stopped) std::this_thread::yield();
    ++ended;
    throw std::runtime_error("late");
  };
  const auto stop = [&](int index, const std::exception_ptr&) {
    EXPECT_EQ(index, 3);
    stopped = true;
  };
  EXPECT_THROW(run_threads(8, body, stop), int);
  EXPECT_EQ(ended, 7);
}

}  // namespace
}  // namespace startrail

#include "startrail/base/threads.h"

#include <gtest/gtest.h>
#include <sched.h>

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

TEST(Threads, CountTheCoresThatAreLeftToThem) {
  cpu_set_t all, one;
  ASSERT_EQ(sched_getaffinity(0, sizeof all, &all), 0);
  EXPECT_EQ(available_cores(), CPU_COUNT(&all));
  int core = 0;
  while (!CPU_ISSET(core, &all)) ++core;
  CPU_ZERO(&one);
  CPU_SET(core, &one);
  ASSERT_EQ(sched_setaffinity(0, sizeof one, &one), 0);
  EXPECT_EQ(available_cores(), 1);
  sched_setaffinity(0, sizeof all, &all);
}

}  // namespace
}  // namespace startrail

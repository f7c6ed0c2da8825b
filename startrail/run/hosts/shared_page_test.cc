#include "startrail/run/hosts/shared_page.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <thread>

#include "startrail/run/comm/slots.h"

namespace startrail {
namespace {

// Runs `body` in a process of its own; what it returns is the exit code.
template <class Body>
int in_child(const Body& body) {
  const pid_t child = fork();
  if (child == 0) _exit(body());
  int status = 0;
  waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

TEST(SharedPage, IsTheSameForEveryProcess) {
  SharedPage page("word", /*slots=*/1, /*flags=*/3);
  const std::string place = page.place();
  EXPECT_TRUE(page.raise(1));
  EXPECT_EQ(in_child([&] {
              const auto theirs = SharedPage::open(place, "word");
              if (!theirs) return 1;
              sem_wait(theirs->turns().get());  // and never given back
              return theirs->raise(1) ? 2 : theirs->raise(2) ? 0 : 3;
            }),
            0);
  EXPECT_FALSE(page.raise(1));
  EXPECT_FALSE(page.raise(2));
  EXPECT_TRUE(page.raise(0));
  EXPECT_NE(sem_trywait(page.turns().get()), 0);
}

TEST(SharedPage, IsNotOpenedByOthers) {
  SharedPage page("word", 1, 3);
  EXPECT_FALSE(SharedPage::open(page.place(), "another"));
  EXPECT_FALSE(SharedPage::open("/proc/self/fd/0", "word"));
  EXPECT_FALSE(SharedPage::open("/proc/self/exe", "word"));
  const std::string place = page.place();
  page.close_place();
  EXPECT_FALSE(SharedPage::open(place, "word"));
}

TEST(ComputeSlots, OfAPageAreSharedAndEndedTogether) {
  const SharedPage page("word", 2, 1);
  ComputeSlots mine(page.turns(), 2), theirs(page.turns(), 2);
  mine.resize(1);
  mine.acquire();
  std::string reason;
  std::thread other([&] {
    try {
      theirs.acquire();
    } catch (const ClusterError& error) {
      reason = error.what();
    }
  });
  usleep(50000);
  theirs.abort("all is over");
  other.join();
  EXPECT_EQ(reason, "all is over");
  mine.release();
  mine.acquire();
  EXPECT_THROW(theirs.check(), ClusterError);
}

}  // namespace
}  // namespace startrail

#include "startrail/run/comm/local.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <thread>

#include "startrail/base/error.h"
#include "startrail/base/threads.h"
#include "startrail/run/comm/ranks.h"

namespace startrail {
namespace {

using GroupPtr = std::shared_ptr<Group>;

at::Tensor number(double value) { return at::full({3}, value); }

TEST(Local, KeepsTheOrderOfATagAndMatchesTags) {
  run_ranks(2, 2, [](const GroupPtr& group) {
    if (group->rank() == 0) {
      std::vector<Post> batch;
      for (int i = 0; i < 5; ++i) batch.push_back({Post::Way::send, number(i), 1, i % 2});
      group->channel().wait(group->channel().post(batch));
    } else {
      for (int i : {1, 3, 0, 2, 4}) {  // odd tags first
        at::Tensor got = number(-1);
        group->channel().wait(group->channel().post({{Post::Way::receive, got, 0, i % 2}}));
        EXPECT_EQ(got[0].item<double>(), i);
      }
    }
  });
}

TEST(Local, CompletesASendOnlyWhenItWasReceived) {
  run_ranks(2, 2, [](const GroupPtr& group) {
    if (group->rank() == 0) {
      const std::vector<Pending> sent = group->channel().post({{Post::Way::send, number(7), 1}});
      EXPECT_FALSE(sent[0].work->isCompleted());
      group->control().barrier();
      group->channel().wait(sent);
      EXPECT_TRUE(sent[0].work->isCompleted());
    } else {
      group->control().barrier();
      at::Tensor got = number(0);
      group->channel().wait(group->channel().post({{Post::Way::receive, got, 0}}));
    }
  });
}

TEST(Local, TellsWhenTheTwoSidesDisagree) {
  try {
    run_ranks(2, 2, [](const GroupPtr& group) {
      const int rank = group->rank();
      const auto way = rank == 0 ? Post::Way::send : Post::Way::receive;
      group->channel().wait(group->channel().post({{way, at::zeros({rank + 1}), 1 - rank}}));
    });
    FAIL() << "sizes 1 and 2 were matched";
  } catch (const InternalError& error) {
    EXPECT_NE(std::string(error.what()).find("rank 0 sends"), std::string::npos) << error.what();
  }
}

TEST(Ranks, ThrowTheFirstErrorAndStopTheOthers) {
  std::atomic<int> stopped{0};  // those that would wait for ever otherwise
  try {
    run_ranks(8, 2, [&](const GroupPtr& group) {
      if (group->rank() == 5) throw UserError("five is wrong");
      try {
        if (group->rank() % 2 == 0) {
          group->control().barrier();
        } else {
          group->channel().wait(group->channel().post({{Post::Way::receive, number(0), 0}}));
        }
      } catch (const ClusterError& error) {
        ++stopped;
        EXPECT_STREQ(error.what(), "stopped because rank 5 failed: five is wrong");
        throw;
      }
    });
    FAIL() << "nothing was thrown";
  } catch (const UserError& error) {
    EXPECT_STREQ(error.what(), "five is wrong");
  }
  EXPECT_EQ(stopped, 7);
}

TEST(Ranks, ComputeNoMoreAtATimeThanThreads) {
  std::atomic<int> computing{0}, most{0};
  run_ranks(12, 2, [&](const GroupPtr& group) {
    for (int i = 0; i < 20; ++i) {
      const auto turn = group->compute();
      const int now = ++computing;
      int seen = most;
      while (now > seen && !most.compare_exchange_weak(seen, now)) {
      }
      std::this_thread::sleep_for(std::chrono::microseconds(200));
      --computing;
    }
  });
  EXPECT_EQ(most, 2);
}

TEST(Ranks, RefuseNone) {
  EXPECT_THROW(run_ranks(0, 2, [](const GroupPtr&) {}), UserError);
  EXPECT_THROW(run_ranks(2, 0, [](const GroupPtr&) {}), UserError);
}

}  // namespace
}  // namespace startrail

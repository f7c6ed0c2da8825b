#include "startrail/run/comm/local.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <thread>

#include "startrail/base/error.h"
#include "startrail/run/comm/ranks.h"

namespace startrail {
namespace {

using GroupPtr = std::shared_ptr<Group>;

at::Tensor number(double value) { return at::full({3}, value); }

TEST(Local, KeepsTheOrderOfATagAndMatchesTags) {
  run_ranks(2, 2, [](const GroupPtr& group) {
    if (group->rank() == 0) {
      std::vector<Pending> sent;
      for (int i = 0; i < 5; ++i) sent.push_back(group->send(number(i), 1, i % 2, Traffic::p2p));
      for (const Pending& pending : sent) group->wait(pending);
    } else {
      for (int i : {1, 3, 0, 2, 4}) {  // odd tags first
        at::Tensor got = number(-1);
        group->wait(group->receive(got, 0, i % 2, Traffic::p2p));
        EXPECT_EQ(got[0].item<double>(), i);
      }
    }
  });
}

TEST(Local, CompletesASendOnlyWhenItWasReceived) {
  run_ranks(2, 2, [](const GroupPtr& group) {
    if (group->rank() == 0) {
      const Pending sent = group->send(number(7), 1, 0, Traffic::p2p);
      EXPECT_FALSE(Group::done(sent));
      group->barrier();
      group->wait(sent);
      EXPECT_TRUE(Group::done(sent));
    } else {
      group->barrier();
      at::Tensor got = number(0);
      group->wait(group->receive(got, 0, 0, Traffic::p2p));
    }
  });
}

TEST(Local, ReducesInRankOrder) {
  // 1e8, -1e8 and small numbers: only one order gives this sum.
  const std::vector<float> values{1e8f, -1e8f, 0.5f, 3.25f};
  float expected = values[0];
  for (int i = 1; i < 4; ++i) expected += values[i];
  run_ranks(4, 2, [&](const GroupPtr& group) {
    at::Tensor sum = at::full({2}, values[group->rank()]), most = at::full({2}, 1.0 * group->rank());
    group->all_reduce_sum(sum);
    group->all_reduce_max(most);
    EXPECT_EQ(sum[1].item<float>(), expected);
    EXPECT_EQ(most[0].item<float>(), 3);
  });
}

TEST(Local, BroadcastsAndGathers) {
  LocalWorld world(3);
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < 3; ++rank)
    ranks.emplace_back([&world, rank] {
      const auto backend = world.backend(rank);
      std::vector<at::Tensor> tensors{at::full({2}, rank + 10.0)};
      c10d::BroadcastOptions options;
      options.rootRank = 2;
      backend->broadcast(tensors, options)->wait();
      EXPECT_EQ(tensors[0][0].item<double>(), 12);
      std::vector<at::Tensor> input{at::full({2}, rank * 1.0)};
      std::vector<std::vector<at::Tensor>> outputs{{at::zeros({2}), at::zeros({2}), at::zeros({2})}};
      backend->allgather(outputs, input)->wait();
      for (int i = 0; i < 3; ++i) EXPECT_EQ(outputs[0][i][1].item<double>(), i);
    });
  for (std::thread& rank : ranks) rank.join();
}

TEST(Local, CountsBytesMessagesAndWaitsByKindAndPeer) {
  run_ranks(2, 2, [](const GroupPtr& group) {
    if (group->rank() == 0) {
      group->wait(group->send(number(1), 1, 0, Traffic::p2p));
      group->wait(group->send(number(1), 1, 0, Traffic::p2p));
      group->wait(group->send(at::zeros({5}, at::kBFloat16), 1, 0, Traffic::merge));
      EXPECT_EQ((group->counts().messages.at({Traffic::p2p, 1}).sent_bytes), 24);
      EXPECT_EQ((group->counts().messages.at({Traffic::p2p, 1}).sent_messages), 2);
      EXPECT_EQ(group->counts().sent()[Traffic::merge], 10);
      EXPECT_EQ(group->counts().sent().total(), 34);
      EXPECT_GT(group->counts().wait_seconds(), 0.02);
    } else {
      std::this_thread::sleep_for(std::chrono::milliseconds(30));
      at::Tensor got = number(0), bits = at::zeros({5}, at::kBFloat16);
      group->wait(group->receive(got, 0, 0, Traffic::p2p));
      group->wait(group->receive(got, 0, 0, Traffic::p2p));
      group->wait(group->receive(bits, 0, 0, Traffic::merge));
      EXPECT_EQ(group->counts().sent().total(), 0);
    }
  });
}

TEST(Local, TellsWhenTheTwoSidesDisagree) {
  try {
    run_ranks(2, 2, [](const GroupPtr& group) {
      at::Tensor t = at::zeros({group->rank() + 1});
      group->wait(group->rank() == 0 ? group->send(t, 1, 0, Traffic::p2p) : group->receive(t, 0, 0, Traffic::p2p));
    });
    FAIL() << "sizes 1 and 2 were matched";
  } catch (const InternalError& error) {
    EXPECT_NE(std::string(error.what()).find("rank 0 sends"), std::string::npos) << error.what();
  }
}

TEST(Ranks, ThrowTheFirstErrorAndStopTheOthers) {
  const auto start = std::chrono::steady_clock::now();
  std::atomic<int> stopped{0};
  try {
    run_ranks(8, 2, [&](const GroupPtr& group) {
      if (group->rank() == 5) throw UserError("five is wrong");
      try {
        if (group->rank() % 2 == 0) {
          group->barrier();
        } else {
          at::Tensor got = number(0);
          group->wait(group->receive(got, 0, 0, Traffic::p2p));
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
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(1));
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

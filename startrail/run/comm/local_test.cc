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
  LocalWorld world(4);
  run_threads(4, [&](int rank) {
    std::vector<at::Tensor> sum{at::full({2}, values[rank])}, most{at::full({2}, 1.0 * rank)};
    c10d::AllreduceOptions options;
    world.backend(rank)->allreduce(sum, options)->wait();
    options.reduceOp = c10d::ReduceOp::MAX;
    world.backend(rank)->allreduce(most, options)->wait();
    EXPECT_EQ(sum[0][1].item<float>(), expected);
    EXPECT_EQ(most[0][0].item<float>(), 3);
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
      const auto start = std::chrono::steady_clock::now();
      group->wait(group->send(number(1), 1, 0, Traffic::p2p));
      group->wait(group->send(number(1), 1, 0, Traffic::p2p));
      group->wait(group->send(at::zeros({5}, at::kBFloat16), 1, 0, Traffic::merge));
      const std::chrono::duration<double> all = std::chrono::steady_clock::now() - start;
      EXPECT_EQ((group->counts().messages.at({Traffic::p2p, 1}).sent_bytes), 24);
      EXPECT_EQ((group->counts().messages.at({Traffic::p2p, 1}).sent_messages), 2);
      EXPECT_EQ(group->counts().sent()[Traffic::merge], 10);
      EXPECT_EQ(group->counts().sent().total(), 34);
      EXPECT_GT(group->counts().wait_seconds(), 0);
      EXPECT_LE(group->counts().wait_seconds(), all.count());
    } else {
      std::this_thread::sleep_for(std::chrono::milliseconds(30));  // so that most of it is waiting
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

TEST(Group, PartNumbersItsRanksAndKeepsItsMessages) {
  run_ranks(6, 2, [](const GroupPtr& group) {
    const int world_rank = group->rank(), first = world_rank / 3 * 3;
    const GroupPtr part = group->part(first, 3);
    EXPECT_EQ(part->rank(), world_rank - first);
    EXPECT_EQ(part->size(), 3);
    // Round the part; in both parts the same ranks, tags and sizes.
    const int next = (part->rank() + 1) % 3, before = (part->rank() + 2) % 3;
    at::Tensor got = number(-1);
    const Pending sent = part->send(number(world_rank), next, 0, Traffic::p2p);
    part->wait(part->receive(got, before, 0, Traffic::p2p));
    part->wait(sent);
    EXPECT_EQ(got[0].item<double>(), first + before);
    const GroupPtr last = part->rank() == 0 ? part->part(0, 1) : part->part(1, 2);  // a part of the part
    EXPECT_EQ(last->rank(), part->rank() == 0 ? 0 : part->rank() - 1);
    std::vector<double> expected{1.0 * first};
    if (part->rank() > 0) expected = {first + 1.0, first + 2.0};
    EXPECT_EQ(last->all_gather(1.0 * world_rank), expected);
  });
}

TEST(Group, PartCountsForItself) {
  run_ranks(4, 2, [](const GroupPtr& group) {
    const GroupPtr part = group->part(group->rank() / 2 * 2, 2);
    const int other = 1 - part->rank();
    const auto swap = [&](Group& through, int peer) {
      at::Tensor got = number(-1);
      const Pending sent = through.send(number(1), peer, 0, Traffic::p2p);
      through.wait(through.receive(got, peer, 0, Traffic::p2p));
      through.wait(sent);
    };
    swap(*part, other);
    swap(*part, other);
    EXPECT_EQ((part->counts().messages.at({Traffic::p2p, other}).sent_messages), 2);
    EXPECT_EQ(part->counts().sent().total(), 24);
    EXPECT_TRUE(group->counts().messages.empty());
    swap(*group, (group->rank() + 2) % 4);
    EXPECT_EQ(group->counts().sent().total(), 12);
    EXPECT_EQ(part->counts().sent().total(), 24);
    part->reset_counts();
    EXPECT_EQ(group->counts().sent().total(), 12);
  });
}

TEST(Group, PartIsNotForOthersAndHasNoBarrier) {
  run_ranks(4, 2, [](const GroupPtr& group) {
    const int first = group->rank() / 2 * 2;
    EXPECT_THROW(group->part(2 - first, 2), InternalError);  // without this rank
    EXPECT_THROW(group->part(first, 5), InternalError);
    EXPECT_THROW(group->part(-1, 4), InternalError);
    EXPECT_THROW(group->part(group->rank(), 0), InternalError);
    const GroupPtr part = group->part(first, 2);
    EXPECT_THROW(part->barrier(), InternalError);
  });
}

TEST(Group, AllGatherIsInRankOrder) {
  run_ranks(6, 2, [](const GroupPtr& group) {
    const auto check = [](Group& through, int first) {
      const int rank = first + through.rank();
      // Differs at every rank and place, and is not contiguous.
      const auto values = [](int r) { return (at::arange(6, at::kDouble).view({2, 3}) + 10 * r).t(); };
      const std::vector<at::Tensor> all = through.all_gather(values(rank));
      ASSERT_EQ(static_cast<int>(all.size()), through.size());
      for (int i = 0; i < through.size(); ++i) EXPECT_TRUE(at::equal(all[i], values(first + i))) << i;
      const std::vector<double> numbers = through.all_gather(rank + 0.1);
      ASSERT_EQ(static_cast<int>(numbers.size()), through.size());
      for (int i = 0; i < through.size(); ++i) EXPECT_EQ(numbers[i], first + i + 0.1);
      EXPECT_EQ(through.counts().sent()[Traffic::gather], (through.size() - 1) * (6 + 1) * 8);
      const std::vector<at::Tensor> flags = through.all_gather(at::full({}, rank % 2 == 0, at::kBool));
      for (int i = 0; i < through.size(); ++i) EXPECT_EQ(flags[i].item<bool>(), (first + i) % 2 == 0);
    };
    check(*group, 0);
    const int first = group->rank() < 2 ? 0 : 2;
    check(*group->part(first, first == 0 ? 2 : 4), first);  // parts of 2 and 4 at the same time
    check(*group->part(group->rank(), 1), group->rank());
  });
}

TEST(Ranks, ThrowTheFirstErrorAndStopTheOthers) {
  std::atomic<int> stopped{0};  // those that would wait for ever otherwise
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

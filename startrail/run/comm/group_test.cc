#include "startrail/run/comm/group.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <map>
#include <thread>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "startrail/base/error.h"
#include "startrail/run/comm/ranks.h"

namespace startrail {
namespace {

using GroupPtr = std::shared_ptr<Group>;

at::Tensor number(double value) { return at::full({3}, value); }

Post send(const at::Tensor& tensor, int to, int tag = 0, Traffic kind = Traffic::p2p) {
  return {Post::Way::send, tensor, to, tag, kind};
}
Post receive(const at::Tensor& tensor, int from, int tag = 0, Traffic kind = Traffic::p2p) {
  return {Post::Way::receive, tensor, from, tag, kind};
}

TEST(Channel, CountsBytesMessagesAndWaitsByKindAndPeer) {
  run_ranks(2, 2, [](const GroupPtr& group) {
    Channel& channel = group->channel();
    const at::Tensor bits = at::zeros({5}, at::kBFloat16);
    if (group->rank() == 0) {
      channel.wait(channel.post({send(number(1), 1), send(number(1), 1), send(bits, 1, 0, Traffic::merge)}));
      const Counts& counts = group->meter().counts();
      EXPECT_EQ((counts.messages.at({Traffic::p2p, 1}).sent_bytes), 24);
      EXPECT_EQ((counts.messages.at({Traffic::p2p, 1}).sent_messages), 2);
      EXPECT_EQ(counts.sent()[Traffic::merge], 10);
      EXPECT_EQ(counts.sent().total(), 34);
      EXPECT_GT(counts.wait_seconds(), 0);
    } else {
      at::Tensor got = number(0);
      channel.wait(channel.post({receive(got, 0)}));
      channel.wait(channel.post({receive(got, 0), receive(bits, 0, 0, Traffic::merge)}));
      EXPECT_EQ(group->meter().counts().sent().total(), 0);
    }
  });
}

TEST(Channel, GathersTensorsInRankOrder) {
  run_ranks(5, 2, [](const GroupPtr& group) {
    // Differs at every rank and place, and is not contiguous.
    const auto values = [](int rank) { return (at::arange(6, at::kDouble).view({2, 3}) + 10 * rank).t(); };
    const std::vector<at::Tensor> all = group->channel().all_gather(values(group->rank()));
    ASSERT_EQ(all.size(), 5u);
    for (int rank = 0; rank < 5; ++rank) EXPECT_TRUE(at::equal(all[rank], values(rank))) << rank;
    EXPECT_EQ(group->meter().counts().sent()[Traffic::gather], 4 * 6 * 8);
  });
}

// A backend that can make one launch of a batch, and writes down what it is asked for.
class Launching : public c10d::Backend {
 public:
  Launching() : Backend(0, 4) {}
  const std::string getBackendName() const override { return "launching"; }
  bool supportsCoalescing() const override { return true; }
  void startCoalescing() override { log += "("; }
  c10::intrusive_ptr<c10d::Work> endCoalescing() override {
    log += ")";
    return c10::make_intrusive<Done>();
  }
  c10::intrusive_ptr<c10d::Work> send(std::vector<at::Tensor>&, int to, int) override {
    log += cat(" send ", to);
    return c10::make_intrusive<Done>();
  }
  c10::intrusive_ptr<c10d::Work> recv(std::vector<at::Tensor>&, int from, int) override {
    log += cat(" recv ", from);
    return c10::make_intrusive<Done>();
  }
  struct Done : c10d::Work {
    bool wait(std::chrono::milliseconds) override { return true; }
  };
  std::string log;
};

TEST(Channel, PostsABatchAsOneLaunch) {
  const auto backend = c10::make_intrusive<Launching>();
  Group group(backend);
  Channel& channel = group.channel();
  const auto posted = channel.post({send(number(0), 1), receive(number(0), 3), send(number(0), 2)});
  EXPECT_EQ(backend->log, "( send 1 recv 3 send 2)");
  EXPECT_EQ(posted[0].work, posted[2].work);
  channel.wait(posted);
  channel.post({send(number(0), 3)});
  EXPECT_EQ(backend->log, "( send 1 recv 3 send 2) send 3");
}

TEST(Control, GathersTextsAndNumbersInRankOrder) {
  run_ranks(6, 2, [](const GroupPtr& group) {
    Control& control = group->control();
    // None, a few and more bytes than fit the first message.
    for (size_t size : {0, 7, 2040, 2041, 100000}) {
      const auto text = [&](int rank) {
        return std::string(size + (rank == 4 ? 3 : 0), static_cast<char>('a' + rank));
      };
      const std::vector<std::string> all = control.gather(text(group->rank()));
      ASSERT_EQ(all.size(), 6u);
      for (int rank = 0; rank < 6; ++rank) EXPECT_EQ(all[rank], text(rank)) << size;
    }
    EXPECT_EQ(control.gather(group->rank() + 0.1), (std::vector{0.1, 1.1, 2.1, 3.1, 4.1, 5.1}));
    const std::vector<int64_t> mine(group->rank() % 3, group->rank());
    EXPECT_EQ(control.gather(mine), (std::vector<std::vector<int64_t>>{{}, {1}, {2, 2}, {}, {4}, {5, 5}}));
    EXPECT_EQ(group->meter().counts().sent().total(), 0);  // not counted with tensors
    EXPECT_GT(group->meter().counts().wait_seconds(), 0);
  });
}

TEST(Control, BarrierHoldsAllBack) {
  std::atomic<int> arrived = 0;
  run_ranks(5, 2, [&](const GroupPtr& group) {
    for (int round = 1; round <= 20; ++round) {
      ++arrived;
      group->control().barrier();
      EXPECT_GE(arrived, 5 * round);
      group->control().barrier();
      EXPECT_EQ(arrived, 5 * round);
      group->control().barrier();
    }
  });
}

// Runs agree on 4 ranks and gives what each of them threw.
std::vector<std::string> thrown(const std::function<void(int rank)>& body) {
  std::vector<std::string> errors(4, "nothing");
  run_ranks(4, 2, [&](const GroupPtr& group) {
    std::string& mine = errors[group->rank()];
    try {
      group->control().agree([&] { body(group->rank()); });
    } catch (const UserError& error) {
      mine = cat("user: ", error.what());
    } catch (const ClusterError& error) {
      mine = cat("cluster: ", error.what());
    } catch (const InternalError& error) {
      mine = cat("internal: ", error.what());
    }
    group->control().barrier();  // nobody is left behind
  });
  return errors;
}

TEST(Control, AllAgreeOrAllThrowTheFirstRanksError) {
  std::atomic<int> ran = 0;
  EXPECT_EQ(thrown([&](int) { ++ran; }), std::vector<std::string>(4, "nothing"));
  EXPECT_EQ(ran, 4);
  EXPECT_EQ(thrown([](int rank) {
              if (rank == 0) throw UserError("no such folder");
            }),
            std::vector<std::string>(4, "user: no such folder"));
  EXPECT_EQ(thrown([](int rank) {
              if (rank >= 2) throw ClusterError(cat("disk ", rank, " is full"));
            }),
            std::vector<std::string>(4, "cluster: disk 2 is full"));
  EXPECT_EQ(thrown([](int rank) {
              if (rank == 1) std::filesystem::create_directory("/dev/null/x");
            })[3],
            "user: /dev/null/x: Not a directory");
  EXPECT_EQ(thrown([](int rank) {
              if (rank == 3) throw InternalError("a bug");
              if (rank == 1) throw std::runtime_error("something else");
            })[0],
            "cluster: something else");
}

TEST(Group, PartIsOfAnyRanksInAnyOrder) {
  run_ranks(6, 2, [](const GroupPtr& group) {
    const int world = group->rank();
    // 5 1 3 and 4 0 2: every other rank, turned round.
    const std::vector<int> ranks = world % 2 == 1 ? std::vector{5, 1, 3} : std::vector{4, 0, 2};
    const GroupPtr part = group->part(ranks);
    EXPECT_EQ(part->size(), 3);
    EXPECT_EQ(ranks[part->rank()], world);
    // Round the part; in both parts the same ranks, tags and sizes.
    const int next = (part->rank() + 1) % 3, before = (part->rank() + 2) % 3;
    at::Tensor got = number(-1);
    part->channel().wait(part->channel().post({send(number(world), next), receive(got, before)}));
    EXPECT_EQ(got[0].item<double>(), ranks[before]);
    EXPECT_EQ(part->control().gather(1.0 * world), std::vector<double>(ranks.begin(), ranks.end()));
    part->control().barrier();
    // A part of the part, without the first of it.
    const GroupPtr last = part->rank() == 0 ? part->part({0}) : part->part({2, 1});
    std::vector<double> expected{1.0 * ranks[0]};
    if (part->rank() > 0) expected = {1.0 * ranks[2], 1.0 * ranks[1]};
    EXPECT_EQ(last->control().gather(1.0 * world), expected);
  });
}

TEST(Group, PartCountsForItself) {
  run_ranks(4, 2, [](const GroupPtr& group) {
    const GroupPtr part = group->part(group->rank() < 2 ? std::vector{0, 1} : std::vector{2, 3});
    const int other = 1 - part->rank();
    const auto swap = [&](Group& through, int peer) {
      at::Tensor got = number(-1);
      through.channel().wait(through.channel().post({send(number(1), peer), receive(got, peer)}));
    };
    swap(*part, other);
    swap(*part, other);
    EXPECT_EQ((part->meter().counts().messages.at({Traffic::p2p, other}).sent_messages), 2);
    EXPECT_EQ(part->meter().counts().sent().total(), 24);
    EXPECT_TRUE(group->meter().counts().messages.empty());
    swap(*group, (group->rank() + 2) % 4);
    EXPECT_EQ(group->meter().counts().sent().total(), 12);
    EXPECT_EQ(part->meter().counts().sent().total(), 24);
    part->meter().reset();
    EXPECT_EQ(group->meter().counts().sent().total(), 12);
  });
}

TEST(Group, PartIsNotForOthers) {
  run_ranks(4, 2, [](const GroupPtr& group) {
    const int rank = group->rank(), other = (rank + 1) % 4;
    EXPECT_THROW(group->part({other}), InternalError);  // without this rank
    EXPECT_THROW(group->part({rank, 4}), InternalError);
    EXPECT_THROW(group->part({rank, -1}), InternalError);
    EXPECT_THROW(group->part({rank, other, rank}), InternalError);
    EXPECT_THROW(group->part({}), InternalError);
  });
}

TEST(Meter, WritesDownWhatARankReceivesWhileItRecords) {
  std::vector<std::shared_ptr<RankTrace>> traces;
  for (int rank = 0; rank < 3; ++rank) traces.push_back(std::make_shared<RankTrace>(rank));
  run_ranks(3, 2, [&](const GroupPtr& group) {
    const TraceLabel label{"forward", 1, 7, "keys 0"};
    for (const auto& trace : {traces[group->rank()], std::shared_ptr<RankTrace>()}) {
      group->meter().record_to(trace);
      group->channel().all_gather(at::zeros({5}));
      group->meter().timed(Op::attend, &label, [] {});
    }
  });
  std::map<std::tuple<int, int, int, int64_t>, double> sent_us;  // by sender, receiver, tag and number
  for (int rank = 0; rank < 3; ++rank)
    for (const TraceMessage& message : traces[rank]->messages())
      if (message.sent) sent_us[{rank, message.peer, message.tag, message.number}] = message.posted_us;
  EXPECT_EQ(sent_us.size(), 6u);
  for (int rank = 0; rank < 3; ++rank) {
    std::vector<int> peers;
    int steps = 0;
    for (const TraceMessage& message : traces[rank]->messages()) {
      EXPECT_EQ(message.kind, "gather");
      EXPECT_EQ(message.bytes, 20);
      if (message.sent) continue;
      const auto sent = sent_us.find({message.peer, rank, message.tag, message.number});
      ASSERT_NE(sent, sent_us.end()) << "the sender calls it otherwise";
      EXPECT_LE(sent->second, message.arrived_us);
      EXPECT_LE(message.posted_us, message.arrived_us);
      EXPECT_LE(message.arrived_us, message.read_us);
      peers.push_back(message.peer);
    }
    for (const TraceEvent& event : traces[rank]->events()) {
      EXPECT_LE(event.start_us, event.end_us);
      if (event.kind == TraceKind::wait) continue;
      EXPECT_EQ(event.name, "attend");
      EXPECT_EQ(event.kind, TraceKind::compute);
      EXPECT_EQ(event.label.step, 7);
      ++steps;
    }
    EXPECT_EQ(peers, rank == 0 ? (std::vector{1, 2}) : rank == 1 ? (std::vector{0, 2}) : (std::vector{0, 1}));
    EXPECT_EQ(steps, 1);
  }
}

// Every wait that is counted is in the trace, those for all ranks too.
TEST(Meter, WritesDownAsMuchWaitingAsItCounts) {
  run_ranks(2, 2, [](const GroupPtr& group) {
    const auto trace = std::make_shared<RankTrace>(group->rank());
    group->meter().record_to(trace);
    group->meter().reset();
    for (int i = 0; i < 3; ++i) {
      if (group->rank() == i % 2) std::this_thread::sleep_for(std::chrono::milliseconds(20));
      group->channel().all_gather(at::zeros({5}));
      if (group->rank() == i % 2) std::this_thread::sleep_for(std::chrono::milliseconds(20));
      group->control().barrier();
    }
    double waited = 0;
    for (const TraceEvent& event : trace->events())
      if (event.kind == TraceKind::wait) waited += (event.end_us - event.start_us) * 1e-6;
    const double counted = group->meter().counts().wait_seconds();
    EXPECT_GT(counted, 0.015);
    EXPECT_NEAR(waited, counted, 1e-4);
  });
}

TEST(Meter, WritesDownTurns) {
  // Two ranks on one thread: one of them waits while the other computes.
  std::atomic<double> longest_us = 0;
  run_ranks(2, 1, [&](const GroupPtr& group) {
    const auto trace = std::make_shared<RankTrace>(group->rank());
    group->meter().record_to(trace);
    group->control().barrier();
    {
      const auto turn = group->compute();
      std::this_thread::sleep_for(std::chrono::milliseconds(30));
    }
    for (const TraceEvent& event : trace->events())
      if (event.kind == TraceKind::turn && event.end_us - event.start_us > longest_us)
        longest_us = event.end_us - event.start_us;
  });
  EXPECT_GT(longest_us.load(), 15000);
}

}  // namespace
}  // namespace startrail

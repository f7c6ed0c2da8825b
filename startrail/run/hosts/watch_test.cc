// Several watches in one process, over loopback: what they say of each other when one ends, fails or falls silent.
#include "startrail/run/hosts/watch.h"

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <functional>
#include <memory>
#include <thread>

#include "startrail/base/error.h"
#include "startrail/base/threads.h"

namespace startrail {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

steady_clock::time_point in(milliseconds time) { return steady_clock::now() + time; }

// Ranks that watch each other. `nodes` names the node of each.
class Watches {
 public:
  explicit Watches(std::vector<std::string> nodes, milliseconds timeout = milliseconds(1500),
                   std::function<Doing(int rank)> ask = {})
      : watches(nodes.size()), stuck(nodes.size()) {
    Socket listening = listen_on("127.0.0.1", 0);
    const int port = port_of(listening);
    run_threads(static_cast<int>(nodes.size()), [&](int rank) {
      WatchOptions options;
      options.rank = rank;
      options.size = static_cast<int>(nodes.size());
      options.nodes = nodes;
      options.secret = "word";
      options.timeout = timeout;
      options.grace = milliseconds(200);
      options.on_stuck = [this, rank] { stuck[rank] = true; };
      if (ask) options.ask = [rank, ask] { return ask(rank); };
      Socket socket = rank == 0 ? std::move(listening) : connect_to("127.0.0.1", port, in(milliseconds(5000)));
      watches[rank] = std::make_unique<Watch>(options, std::move(socket), in(milliseconds(5000)));
    });
  }

  std::string verdict_of(int rank) {
    for (int i = 0; i < 500; ++i) {
      if (const auto verdict = watches[rank]->verdict()) return *verdict;
      usleep(10000);
    }
    return "none";
  }

  std::vector<std::unique_ptr<Watch>> watches;
  std::vector<std::atomic<bool>> stuck;
};

TEST(Watch, IsSilentWhenAllLeaveInAnyOrder) {
  Watches all({"a", "a", "b", "b"});
  const auto start = steady_clock::now();
  run_threads(4, [&](int rank) {
    usleep(30000 * (rank * 7 % 4));
    EXPECT_FALSE(all.watches[rank]->verdict());
    all.watches[rank].reset();
  });
  EXPECT_LT(steady_clock::now() - start, milliseconds(3000));
}

TEST(Watch, TellsEveryoneWhoFailed) {
  Watches all({"a", "a", "b"});
  all.watches[2]->fail("no such file");
  for (int rank = 0; rank < 3; ++rank) EXPECT_EQ(all.verdict_of(rank), "stopped because rank 2 failed: no such file");
  for (int rank = 0; rank < 2; ++rank) EXPECT_FALSE(all.watches[rank]->speech("own")) << rank;
  EXPECT_EQ(all.watches[2]->speech("own"), "own");
  EXPECT_FALSE(all.watches[2]->speech("own"));  // once
  all.watches[1]->fail("too late");
  EXPECT_EQ(all.verdict_of(1), "stopped because rank 2 failed: no such file");
  usleep(400000);
  for (int rank = 0; rank < 3; ++rank) EXPECT_TRUE(all.stuck[rank]) << rank;  // they are still there
}

TEST(Watch, OfSeveralThatFailOneSpeaks) {
  Watches all({"a", "a", "a", "a"});
  run_threads(4, [&](int rank) { all.watches[rank]->fail("the same everywhere"); });
  int speakers = 0;
  for (auto& watch : all.watches) speakers += watch->speech("own").has_value();
  EXPECT_EQ(speakers, 1);
}

TEST(Watch, TakesAReasonToGiveUp) {
  Watches all({"a", "a"});
  all.watches[0]->set_give_up([] { return std::optional<std::string>("out of time"); });
  EXPECT_EQ(all.verdict_of(1), "out of time");
  EXPECT_EQ(all.watches[0]->speech("own"), "out of time");
  EXPECT_FALSE(all.watches[1]->speech("own"));
}

TEST(Watch, NamesTheTwoThatLostEachOther) {
  Watches all({"a", "a", "b"});
  EXPECT_EQ(
      all.watches[1]->lost(2, "reset by peer"),
      "the connection between rank 1 on a and rank 2 on b broke, though both are alive: reset by peer (seen by rank "
      "1 on a)");
}

TEST(Watch, LetsNoStrangerIn) {
  Socket listening = listen_on("127.0.0.1", 0);
  const int port = port_of(listening);
  WatchOptions options;
  options.size = 2;
  options.nodes = {"a", "a"};
  options.secret = "word";
  std::vector<Line> strangers;
  for (const char* hello : {"1 other", "x word", "0 word", "7 word", ""}) {
    strangers.emplace_back(connect_to("127.0.0.1", port, in(milliseconds(1000))));
    strangers.back().send('h', hello);
  }
  strangers.emplace_back(connect_to("127.0.0.1", port, in(milliseconds(1000))));
  static_cast<void>(!write(strangers.back().descriptor(), "GET / HTTP/1.1\r\n\r\n", 18));
  try {
    const Watch watch(options, std::move(listening), in(milliseconds(300)));
    FAIL() << "a stranger was let in";
  } catch (const ClusterError& error) {
    EXPECT_STREQ(error.what(), "rank 1 did not come to the meeting");
  }
}

// A line by hand in place of rank 1's watch: it can end or fall silent.
class ByHand {
 public:
  ByHand() {
    Socket listening = listen_on("127.0.0.1", 0);
    const int port = port_of(listening);
    run_threads(2, [&](int rank) {
      if (rank == 1) {
        line = std::make_unique<Line>(connect_to("127.0.0.1", port, in(milliseconds(1000))));
        line->send('h', "1 word");
        return;
      }
      WatchOptions options;
      options.size = 2;
      options.nodes = {"a", "b"};
      options.secret = "word";
      options.timeout = milliseconds(1500);
      watch = std::make_unique<Watch>(options, std::move(listening), in(milliseconds(5000)));
    });
  }

  // How long it took, in seconds.
  double wait() {
    const auto start = steady_clock::now();
    while (!watch->verdict() && steady_clock::now() - start < milliseconds(5000)) usleep(5000);
    return std::chrono::duration<double>(steady_clock::now() - start).count();
  }

  std::unique_ptr<Line> line;
  std::unique_ptr<Watch> watch;
};

TEST(Watch, SeesAnEndAtOnce) {
  ByHand pair;
  pair.line->send('b', "0 step 7");
  usleep(50000);
  pair.line->close();
  EXPECT_LT(pair.wait(), 1.0);
  EXPECT_EQ(pair.watch->verdict(), "rank 1 on b ended without a word, in step 7 (seen by rank 0 on a)");
}

TEST(Watch, SeesSilenceWithinTheLimitAndNotBefore) {
  ByHand pair;
  for (int i = 0; i < 10; ++i) {  // longer than the limit, with signs of life
    pair.line->send('b', "0 step 8");
    usleep(200000);
    EXPECT_FALSE(pair.watch->verdict());
  }
  const double waited = pair.wait();
  EXPECT_GT(waited, 0.8);
  EXPECT_LT(waited, 1.5);
  EXPECT_TRUE(pair.watch->verdict()->starts_with("rank 1 on b gave no sign of life for 1.")) << *pair.watch->verdict();
  EXPECT_TRUE(pair.watch->verdict()->ends_with(", in step 8 (seen by rank 0 on a)")) << *pair.watch->verdict();
}

// Rank 2 is in another call, and the others wait for it; or it computes in the same one, or has gone on to the next.
TEST(Watch, EndsWaitsForOthersThatDoSomethingElse) {
  const auto start = steady_clock::now();
  const auto waited = [=] { return std::chrono::duration_cast<milliseconds>(steady_clock::now() - start); };
  Watches apart({"a", "a", "b", "b"}, milliseconds(2000), [&](int rank) {
    return Doing{rank == 2 ? "call 7" : "call 8", rank == 1 ? waited() : milliseconds(5)};
  });
  EXPECT_EQ(apart.verdict_of(3), apart.verdict_of(0));
  EXPECT_NE(apart.verdict_of(0).find("rank 1 on a waited "), std::string::npos) << apart.verdict_of(0);
  EXPECT_NE(apart.verdict_of(0).find(", in call 8, while rank 2 was in call 7 (seen by rank 0 on a)"),
            std::string::npos)
      << apart.verdict_of(0);
  Watches together({"a", "a", "b"}, milliseconds(2000), [&](int rank) {
    return rank == 2 ? Doing{"call 9", {}} : Doing{"call 8", rank == 1 ? waited() : milliseconds(0)};
  });
  usleep(2'800'000);
  EXPECT_FALSE(together.watches[0]->verdict());  // rank 0 still computes for call 8
}

TEST(Watch, EndsWaitsForThoseWhoLeft) {
  for (int leaves : {0, 2}) {
    const auto start = steady_clock::now();
    Watches all({"a", "a", "b"}, milliseconds(20'000), [&](int) {
      return Doing{"call 8", std::chrono::duration_cast<milliseconds>(steady_clock::now() - start)};
    });
    std::thread leaving([&] { all.watches[leaves].reset(); });
    for (int rank : {0, 1, 2}) {
      if (rank == leaves) continue;
      const std::string verdict = all.verdict_of(rank);
      EXPECT_NE(verdict.find(cat("rank ", leaves, " had ended")), std::string::npos) << verdict;
    }
    leaving.join();
    EXPECT_LT(steady_clock::now() - start, milliseconds(8000));
  }
}

TEST(Line, PassesFramesWhateverTheirPieces) {
  int ends[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, ends), 0);
  Line from{Socket(ends[0])}, to{Socket(ends[1])};
  const std::string large(700000, 'x');  // more than a socket takes at once
  from.send('a', "");
  from.send('b', large);
  std::vector<Frame> got;
  while (got.size() < 2) {
    from.flush();
    ASSERT_TRUE(to.receive());
    while (auto frame = to.next()) got.push_back(*frame);
  }
  EXPECT_EQ(got[0].kind, 'a');
  EXPECT_EQ(got[1].text, large);
  from.close();
  EXPECT_FALSE(to.receive());
}

TEST(Seal, KeepsStrangersOutAndFriendsIn) {
  const Socket listening = listen_on("127.0.0.1", 0);
  Line inside(connect_to("127.0.0.1", port_of(listening), in(milliseconds(1000))));
  Line other{accept_from(listening)};
  ASSERT_TRUE(listening_sockets().contains(listening.get()));
  seal({listening.get()});
  EXPECT_THROW(connect_to("127.0.0.1", port_of(listening), in(milliseconds(300))), ClusterError);
  inside.send('z', "still here");
  usleep(20000);
  ASSERT_TRUE(other.receive());
  EXPECT_EQ(other.next()->text, "still here");
}

}  // namespace
}  // namespace startrail

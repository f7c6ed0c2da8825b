// Who is alive. Every process keeps a line to rank 0's and sends signs of life over it from a thread of its own,
// whatever its rank computes, waits for or writes meanwhile. Rank 0 sees who ends, fails or falls silent, and tells
// everyone one verdict; when rank 0 itself is gone, each comes to its own. Nothing here waits for ever, and nothing
// needs a store.
#pragma once

#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "startrail/run/hosts/net.h"

namespace startrail {

// What a rank is at, and how long it has waited for a message of another by now.
struct Doing {
  std::string what;
  std::chrono::milliseconds waited{0};
};

struct WatchOptions {
  int rank = 0, size = 1;
  std::vector<std::string> nodes = {};  // of every rank
  std::string secret = {};              // what a peer must say to be let in
  std::chrono::milliseconds timeout{30000};
  // Called once, from the watch's thread, when the job is over for a reason; then `on_stuck` if this object still is
  // there `grace` later.
  std::function<void(const std::string& verdict)> on_verdict = {};
  std::function<void()> on_stuck = {};
  // True for the first process of this host that asks for a number: of several that come to a verdict of their own, the
  // first of each node says it.
  std::function<bool(int number)> claim = [](int) { return true; };
  std::chrono::milliseconds grace{500};
  // Asked at every beat. Where it is given, a rank that waits longer than the timeout while others are at something
  // else ends the job: they do not do the same.
  std::function<Doing()> ask = {};
};

// Why the job is over.
struct Verdict {
  std::string text;
  int speaker = 0;       // the rank that tells the user; -1: of each node the first that comes to it
  bool of_user = false;  // what the user can repair failed, not the machine
};

class Watch {
 public:
  using Time = std::chrono::steady_clock::time_point;

  // `socket` listens on rank 0 and is connected to it elsewhere. Returns when all ranks are there; ClusterError when
  // some are not until then.
  Watch(WatchOptions options, Socket socket, Time until);
  // Leaves the others in peace: they are told that this rank is done.
  ~Watch();

  // A rank is lost when it was silent for this long, less what it takes to tell everyone.
  void set_timeout(std::chrono::milliseconds timeout);
  // What this rank is at, for verdicts.
  void doing(const std::string& what);
  // Asked several times a second on rank 0: a reason to end the job, or nothing.
  void set_give_up(std::function<std::optional<std::string>()> give_up);

  // This rank failed: everyone gets to know. Returns when there is a verdict, its own or one that came before.
  void fail(const std::string& why, bool of_user = false);
  // A message from or to this peer broke off. Waits for what becomes of it and returns the verdict.
  std::string lost(int peer, const std::string& why);

  std::optional<std::string> verdict() const;
  // Whether there is a verdict that the user can repair.
  bool is_of_user() const;
  // What this rank has to tell the user, once: `own` when it failed first, the verdict when it is the one to say it,
  // and nothing when another rank speaks.
  std::optional<std::string> speech(const std::string& own);

 private:
  struct Peer {
    int rank = -1;
    Line line;
    Time heard = {};
    std::optional<Time> closed = {};
    bool left = false;
    std::string doing = {};
    std::chrono::milliseconds waited{0};
  };
  struct Suspicion {
    int by, peer;
    std::string why;
    Time since;
  };

  void take_in(const Socket& listening, Time until);
  void enter(Socket socket, Time until);
  void loop();
  void beat(Time now);
  void handle(Peer& peer, const Frame& frame, Time now);
  void obey_requests(Time now);
  void judge(Time now);
  void judge_silence(Time now);
  void judge_waits();
  void decide(const Verdict& verdict, bool tell);
  bool is_done(Time now);
  std::chrono::milliseconds patience() const;
  std::string name(int rank) const;  // "rank 3 on host1"
  std::string at(const std::string& what) const { return what.empty() ? "" : ", in " + what; }
  int first_of_node() const;
  void wake() const;

  WatchOptions options_;
  std::vector<Peer> peers_;  // rank 0: of all others; others: rank 0. The thread's own
  std::vector<Suspicion> suspicions_;
  Time last_beat_ = {};
  std::optional<Time> decided_;
  std::optional<Time> leaving_since_;
  bool stuck_told_ = false, said_failure_ = false;

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::chrono::milliseconds timeout_;
  std::string doing_;
  std::chrono::milliseconds waited_{0};
  bool doing_changed_ = false, leaving_ = false, spoken_ = false;
  std::optional<Verdict> failure_;
  std::vector<Suspicion> asked_;
  std::function<std::optional<std::string>()> give_up_;
  std::optional<Verdict> verdict_;
  Socket wake_;
  std::thread thread_;
};

}  // namespace startrail

#include "startrail/run/hosts/watch.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <list>
#include <map>
#include <utility>

#include "startrail/base/error.h"

namespace startrail {
namespace {

using std::chrono::duration_cast;
using std::chrono::milliseconds;
using std::chrono::steady_clock;

constexpr milliseconds kBeat{250};
// A process that ended may have been ended together with this one: then this is not the one to complain.
constexpr milliseconds kAfterEnd{100};
// When two ranks lose each other, one of them mostly has ended, which its line tells soon.
constexpr milliseconds kSuspicion{1000};
constexpr milliseconds kFarewell{5000};
constexpr const char* kHasLeft = "-";  // is at nothing any more
constexpr int kAnyone = -1;            // for a verdict without rank 0, which would choose who says it
constexpr milliseconds kLate{1000};    // of the loop, which waits for a beat at most

// Kinds of frames.
constexpr char kHello = 'h', kAllHere = 'a', kAlive = 'b', kFailed = 'f', kLost = 'l', kVerdict = 'v', kLeaves = 'q';

int number_before(const std::string& text, char end) {
  int number = -1;
  std::from_chars(text.data(), text.data() + std::min(text.find(end), text.size()), number);
  return number;
}
std::string text_after(const std::string& text, char end) {
  const size_t at = text.find(end);
  return at == std::string::npos ? "" : text.substr(at + 1);
}

void wait_for(std::vector<pollfd>& sockets, steady_clock::time_point until) {
  const auto left = duration_cast<milliseconds>(until - steady_clock::now()).count();
  poll(sockets.data(), sockets.size(), static_cast<int>(std::clamp<int64_t>(left, 0, kBeat.count())));
}

std::string failed_text(int rank) { return cat("stopped because rank ", rank, " failed: "); }

std::string seconds_text(steady_clock::duration time) {
  const double seconds = std::chrono::duration<double>(time).count();
  return cat(fixed(seconds, seconds < 10 ? 1 : 0), " s");
}

// A verdict in a frame and back.
std::string to_text(const Verdict& verdict) {
  return cat(verdict.speaker, verdict.of_user ? " u " : " c ", verdict.text);
}
Verdict verdict_from(const std::string& text) {
  const std::string rest = text_after(text, ' ');
  return {text_after(rest, ' '), number_before(text, ' '), rest.starts_with("u ")};
}

}  // namespace

Watch::Watch(WatchOptions options, Socket socket, Time until)
    : options_(std::move(options)), timeout_(options_.timeout), wake_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  if (options_.size > 1) options_.rank == 0 ? take_in(socket, until) : enter(std::move(socket), until);
  const Time now = steady_clock::now();
  for (Peer& peer : peers_) peer.heard = now;
  thread_ = std::thread([this] { loop(); });
}

// Rank 0: everyone says who he is; then all are told that all are there. Strangers wait until then and are dropped.
void Watch::take_in(const Socket& listening, Time until) {
  std::list<Line> unknown;
  while (static_cast<int>(peers_.size()) < options_.size - 1) {
    if (steady_clock::now() >= until) {
      std::vector<int> missing;
      for (int rank = 1; rank < options_.size; ++rank)
        if (std::none_of(peers_.begin(), peers_.end(), [&](const Peer& peer) { return peer.rank == rank; }))
          missing.push_back(rank);
      throw ClusterError(cat(numbered("rank", missing), " did not come to the meeting"));
    }
    std::vector<pollfd> sockets{{listening.get(), POLLIN, 0}};
    for (const Line& line : unknown) sockets.push_back({line.descriptor(), POLLIN, 0});
    wait_for(sockets, until);
    if (sockets[0].revents)
      if (Socket socket = accept_from(listening); socket.is_open()) unknown.emplace_back(std::move(socket));
    for (auto line = unknown.begin(); line != unknown.end();) {
      const bool open = line->receive();
      const std::optional<Frame> frame = line->next();
      const int rank = frame && frame->kind == kHello ? number_before(frame->text, ' ') : -1;
      const bool known =
          rank > 0 && rank < options_.size && text_after(frame->text, ' ') == options_.secret &&
          std::none_of(peers_.begin(), peers_.end(), [&](const Peer& peer) { return peer.rank == rank; });
      if (known) peers_.push_back({rank, std::move(*line)});
      line = known || frame || !open ? unknown.erase(line) : std::next(line);
    }
  }
  std::sort(peers_.begin(), peers_.end(), [](const Peer& a, const Peer& b) { return a.rank < b.rank; });
  for (Peer& peer : peers_) peer.line.send(kAllHere, "");
}

void Watch::enter(Socket socket, Time until) {
  peers_.push_back({0, Line(std::move(socket))});
  Line& line = peers_[0].line;
  line.send(kHello, cat(options_.rank, " ", options_.secret));
  for (;;) {
    const bool open = line.receive();
    if (const auto frame = line.next()) {
      if (frame->kind == kAllHere) return;
    }
    if (!open) throw ClusterError(cat(name(0), " closed the meeting before all ranks were there"));
    if (steady_clock::now() >= until) throw ClusterError(cat(name(0), " waited for other ranks that did not come"));
    std::vector<pollfd> sockets{{line.descriptor(), POLLIN, 0}};
    wait_for(sockets, until);
  }
}

Watch::~Watch() {
  {
    std::lock_guard lock(mutex_);
    leaving_ = true;
  }
  wake();
  thread_.join();
}

void Watch::wake() const {
  const uint64_t one = 1;
  static_cast<void>(!write(wake_.get(), &one, sizeof one));
}

std::string Watch::name(int rank) const {
  const bool known = rank < static_cast<int>(options_.nodes.size());
  return cat("rank ", rank, known ? cat(" on ", options_.nodes[rank]) : "");
}

milliseconds Watch::patience() const {
  std::lock_guard lock(mutex_);
  return timeout_ * 8 / 10;
}

void Watch::set_timeout(milliseconds timeout) {
  std::lock_guard lock(mutex_);
  timeout_ = timeout;
}

void Watch::doing(const std::string& what) {
  {
    std::lock_guard lock(mutex_);
    doing_ = what;
    doing_changed_ = true;
  }
  wake();
}

void Watch::set_give_up(std::function<std::optional<std::string>()> give_up) {
  std::lock_guard lock(mutex_);
  give_up_ = std::move(give_up);
}

void Watch::fail(const std::string& why, bool of_user) {
  std::unique_lock lock(mutex_);
  if (!failure_) failure_ = {why, options_.rank, of_user};
  wake();
  changed_.wait_for(lock, std::chrono::seconds(2), [&] { return verdict_.has_value(); });
}

std::string Watch::lost(int peer, const std::string& why) {
  std::unique_lock lock(mutex_);
  asked_.push_back({options_.rank, peer, why, steady_clock::now()});
  wake();
  changed_.wait_for(lock, timeout_ + kSuspicion, [&] { return verdict_.has_value(); });
  return verdict_ ? verdict_->text : cat("the connection to ", name(peer), " broke: ", why);
}

std::optional<std::string> Watch::verdict() const {
  std::lock_guard lock(mutex_);
  return verdict_ ? std::optional(verdict_->text) : std::nullopt;
}

bool Watch::is_of_user() const {
  std::lock_guard lock(mutex_);
  return verdict_ && verdict_->of_user;
}

std::optional<std::string> Watch::speech(const std::string& own) {
  std::lock_guard lock(mutex_);
  const int speaker = verdict_ ? verdict_->speaker : options_.rank;
  if (spoken_ || (speaker != options_.rank && speaker != kAnyone)) return std::nullopt;
  spoken_ = true;
  if (speaker == kAnyone && !options_.claim(first_of_node())) return std::nullopt;
  return verdict_ && (own.empty() || !verdict_->text.starts_with(failed_text(options_.rank))) ? verdict_->text : own;
}

int Watch::first_of_node() const {
  return static_cast<int>(std::ranges::find(options_.nodes, options_.nodes[options_.rank]) - options_.nodes.begin());
}

void Watch::decide(const Verdict& verdict, bool tell) {
  if (decided_) return;
  decided_ = steady_clock::now();
  if (tell)
    for (Peer& peer : peers_) peer.line.send(kVerdict, to_text(verdict));
  {
    std::lock_guard lock(mutex_);
    verdict_ = verdict;
  }
  changed_.notify_all();
  if (options_.on_verdict) options_.on_verdict(verdict.text);
}

void Watch::handle(Peer& peer, const Frame& frame, Time now) {
  peer.heard = now;
  if (frame.kind == kAlive) {
    peer.waited = milliseconds(number_before(frame.text, ' '));
    peer.doing = text_after(frame.text, ' ');
  }
  if (frame.kind == kLeaves) peer.left = true;
  const bool first = options_.rank == 0;
  // Rank 0 gets one from those who took it for dead.
  if (frame.kind == kVerdict) decide(verdict_from(frame.text), first);
  if (!first) return;
  if (frame.kind == kFailed) {
    Verdict verdict = verdict_from(frame.text);
    verdict.text = failed_text(peer.rank) + verdict.text;
    decide(verdict, true);
  }
  if (frame.kind == kLost)
    suspicions_.push_back({peer.rank, number_before(frame.text, ' '), text_after(frame.text, ' '), now});
}

// What this process's own rank wants.
void Watch::obey_requests(Time now) {
  std::unique_lock lock(mutex_);
  const std::optional<Verdict> failure = failure_;
  const std::vector<Suspicion> asked = std::exchange(asked_, {});
  const auto give_up = give_up_;
  const bool leaving = leaving_;
  lock.unlock();
  const bool first = options_.rank == 0;
  if (failure && !decided_) {
    if (first)
      decide({failed_text(0) + failure->text, 0, failure->of_user}, true);
    else if (!said_failure_)
      peers_[0].line.send(kFailed, to_text(*failure));
    said_failure_ = true;
  }
  for (const Suspicion& one : asked) {
    if (first)
      suspicions_.push_back(one);
    else
      peers_[0].line.send(kLost, cat(one.peer, " ", one.why));
  }
  if (first && give_up && !decided_)
    if (const auto reason = give_up()) decide({*reason, 0}, true);
  if (!leaving || leaving_since_) return;
  leaving_since_ = now;
  if (!said_failure_ && !decided_)
    for (Peer& peer : peers_) peer.line.send(kLeaves, "");
}

void Watch::beat(Time now) {
  std::string text;
  {
    std::lock_guard lock(mutex_);
    if (now - last_beat_ < kBeat && !doing_changed_) return;
    doing_changed_ = false;
    if (options_.ask) {
      Doing doing = options_.ask();
      doing_ = std::move(doing.what);
      waited_ = doing.waited;
    }
    text = cat(waited_.count(), " ", doing_);
  }
  last_beat_ = now;
  for (Peer& peer : peers_)
    if (!peer.closed && !peer.line.has_more()) peer.line.send(kAlive, text);
}

void Watch::judge_silence(Time now) {
  const milliseconds limit = patience();
  std::vector<const Peer*> silent;
  Time::duration longest{};
  for (const Peer& peer : peers_)
    if (!peer.left && !peer.closed) longest = std::max(longest, now - peer.heard);
  if (longest < limit) return;
  // A host that is gone takes all of its ranks at once, but for a moment.
  for (const Peer& peer : peers_)
    if (!peer.left && !peer.closed && now - peer.heard > limit * 7 / 10) silent.push_back(&peer);
  if (options_.rank != 0) {
    const bool apart = options_.nodes[0] != options_.nodes[options_.rank];
    decide(
        {cat(name(0), ", where the ranks meet, ", apart ? "cannot be reached from here: no" : "gave no",
             " sign of life for ", seconds_text(longest), at(silent[0]->doing), " (seen by ", name(options_.rank), ")"),
         kAnyone},
        true);
    return;
  }
  std::vector<std::string> names;
  for (const Peer* peer : silent) names.push_back(name(peer->rank));
  decide({cat(join(names), " gave no sign of life for ", seconds_text(longest), at(silent[0]->doing), " (seen by ",
              name(0), ")"),
          0},
         true);
}

// Ranks that wait for each other while they do different things would do so for ever, and so would one that waits for a
// rank that has left.
void Watch::judge_waits() {
  std::vector<std::pair<int, Doing>> all;
  milliseconds limit;
  {
    std::lock_guard lock(mutex_);
    all.push_back({options_.rank, {doing_, waited_}});
    limit = timeout_;
  }
  for (const Peer& peer : peers_) {
    all.push_back({peer.rank, peer.left ? Doing{kHasLeft} : Doing{peer.doing, peer.waited}});
    if (peer.left) limit = std::min(limit, kSuspicion);
  }
  if (options_.rank != 0 && !peers_[0].left) return;  // rank 0 sees more
  const auto& [waiter, doing] = *std::ranges::max_element(all, {}, [](const auto& one) { return one.second.waited; });
  if (doing.waited < limit) return;
  std::map<std::string, std::vector<int>> elsewhere;
  bool works = false;  // a rank still computes for this call; others may be through with it
  for (const auto& [rank, other] : all) {
    if (other.what != doing.what) elsewhere[other.what].push_back(rank);
    works = works || (other.what == doing.what && other.waited.count() == 0);
  }
  if (works) return;
  std::vector<std::string> others;
  for (const auto& [what, ranks] : elsewhere) {
    const std::string were = ranks.size() == 1 ? " was in " : " were in ";
    others.push_back(
        cat(numbered("rank", ranks), what == kHasLeft ? " had ended" : were + (what.empty() ? "none" : what)));
  }
  decide({cat(name(waiter), " waited ", seconds_text(doing.waited), at(doing.what), ", ",
              others.empty() ? "and so did all others" : "while " + join(others, " and "), " (seen by ",
              name(options_.rank), ")"),
          0},
         true);
}

void Watch::judge(Time now) {
  if (decided_) return;
  for (const Peer& peer : peers_)
    if (peer.closed && !peer.left && now - *peer.closed >= kAfterEnd) {
      const bool first = options_.rank == 0;
      decide({cat(name(peer.rank), " ended without a word", at(peer.doing), " (seen by ", name(options_.rank), ")"),
              first ? 0 : kAnyone},
             true);
      return;
    }
  judge_silence(now);
  if (options_.ask && !decided_) judge_waits();
  if (decided_ || options_.rank != 0) return;
  for (const Suspicion& one : suspicions_)
    if (now - one.since >= kSuspicion) {
      const auto gone = std::ranges::find_if(peers_, [&](const Peer& p) { return p.rank == one.peer && p.left; });
      if (gone != peers_.end()) {
        decide(
            {cat(name(one.peer), " had ended while ", name(one.by), " waited for it (seen by ", name(one.by), ")"), 0},
            true);
        return;
      }
      decide({cat("the connection between ", name(one.by), " and ", name(one.peer),
                  " broke, though both are alive: ", one.why, " (seen by ", name(one.by), ")"),
              0},
             true);
      return;
    }
}

// Whether the thread may end: this rank leaves, and the others have left too or need nothing more from it.
bool Watch::is_done(Time now) {
  {
    std::lock_guard lock(mutex_);
    if (!leaving_) return false;
  }
  const bool sent =
      std::none_of(peers_.begin(), peers_.end(), [](const Peer& p) { return !p.closed && p.line.has_more(); });
  if (decided_) return sent || now - *decided_ > options_.grace;
  if (options_.rank != 0) return sent;
  static constexpr auto gone = [](const Peer& peer) { return peer.left || peer.closed; };
  return std::all_of(peers_.begin(), peers_.end(), gone);
}

void Watch::loop() {
  Time last = steady_clock::now();
  for (;;) {
    std::vector<pollfd> sockets{{wake_.get(), POLLIN, 0}};
    for (const Peer& peer : peers_)
      sockets.push_back({peer.closed ? -1 : peer.line.descriptor(),
                         static_cast<short>(POLLIN | (peer.line.has_more() ? POLLOUT : 0)), 0});
    const bool ends_soon = std::any_of(peers_.begin(), peers_.end(), [](auto& p) { return p.closed && !p.left; });
    poll(sockets.data(), sockets.size(), static_cast<int>(ends_soon || decided_ ? 20 : kBeat.count()));
    uint64_t woken;
    static_cast<void>(!read(wake_.get(), &woken, sizeof woken));
    const Time now = steady_clock::now();
    // This process itself was stopped, perhaps with all others: nobody's silence meanwhile means anything.
    if (now - std::exchange(last, now) > kLate)
      for (Peer& peer : peers_) peer.heard = now;
    for (size_t i = 0; i < peers_.size(); ++i) {
      Peer& peer = peers_[i];
      if (peer.closed || sockets[i + 1].revents == 0) continue;
      peer.line.flush();
      const bool open = peer.line.receive();
      while (const auto frame = peer.line.next()) handle(peer, *frame, now);
      if (!open) peer.closed = now;
    }
    obey_requests(now);
    beat(now);
    judge(now);
    if (decided_ && !stuck_told_ && now - *decided_ > options_.grace) {
      stuck_told_ = true;
      if (options_.on_stuck) options_.on_stuck();
    }
    if (is_done(now) || (leaving_since_ && now - *leaving_since_ > kFarewell)) return;
  }
}

}  // namespace startrail

#include "startrail/run/comm/local.h"

#include <atomic>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "startrail/base/error.h"
#include "startrail/base/trace.h"

namespace startrail {
namespace {

struct LocalWork;
using WorkPtr = c10::intrusive_ptr<LocalWork>;

}  // namespace

// Ranks send to all others at once, so with P of them there are P^2 channels: each rank has a lock of its own for what
// comes to it, a channel is there only while a message is in it, and a rank is woken only by what it waits for.
struct LocalWorld::State {
  explicit State(int ranks) : ranks(ranks), inboxes(ranks), waiters(ranks) {}

  // Messages of one sender and tag, posted and not yet matched: all of them sends, or all receives.
  struct Channel {
    bool sends = false;
    std::vector<WorkPtr> works;  // one or two
  };
  struct Inbox {
    std::mutex mutex;                                // guards the channels
    std::unordered_map<uint64_t, Channel> channels;  // by sender and tag
  };
  struct Waiter {
    std::mutex mutex;  // held to complete what the rank waits for
    std::condition_variable wake;
  };

  const int ranks;
  std::deque<Inbox> inboxes;   // of each rank
  std::deque<Waiter> waiters;  // of each rank
  std::mutex mutex;            // guards the error until `failed` is set
  std::string error;
  std::atomic<bool> failed = false;

  void check_alive() const {
    if (failed) throw ClusterError(error);
  }
};

namespace {

using State = LocalWorld::State;

// A send or receive on its way.
struct LocalWork : c10d::Work {
  LocalWork(std::shared_ptr<State> state, int rank, at::Tensor tensor)
      : state(std::move(state)), rank(rank), tensor(std::move(tensor)) {}

  bool isCompleted() override { return done; }
  bool isSuccess() const override { return done; }
  bool wait(std::chrono::milliseconds timeout) override {
    if (done) return true;
    State::Waiter& waiter = state->waiters[rank];
    std::unique_lock lock(waiter.mutex);
    awaited = true;
    const auto ready = [&] { return done || state->failed; };
    if (timeout == c10d::kUnsetTimeout || timeout == kNoTimeout)
      waiter.wake.wait(lock, ready);
    else if (!waiter.wake.wait_for(lock, timeout, ready))
      throw ClusterError(cat("rank ", rank, " waited ", timeout.count(), " ms for a message that did not come"));
    if (!done) state->check_alive();
    return true;
  }
  // By the other side.
  void complete() {
    State::Waiter& waiter = state->waiters[rank];
    std::lock_guard lock(waiter.mutex);
    done_us = RankTrace::now_us();
    done = true;
    if (awaited) waiter.wake.notify_all();
  }

  std::shared_ptr<State> state;
  int rank = -1;         // who waits for it
  at::Tensor tensor;     // kept alive until the other side has copied
  bool awaited = false;  // guarded by the waiter's mutex
  double done_us = 0;    // by the trace's clock; there once it is done
  std::atomic<bool> done = false;
};

class LocalBackend : public c10d::Backend {
 public:
  LocalBackend(std::shared_ptr<State> state, int rank) : Backend(rank, state->ranks), state_(std::move(state)) {}

  const std::string getBackendName() const override { return "local"; }

  c10::intrusive_ptr<c10d::Work> send(std::vector<at::Tensor>& tensors, int to, int tag) override {
    return post(tensors, getRank(), to, tag, true);
  }
  c10::intrusive_ptr<c10d::Work> recv(std::vector<at::Tensor>& tensors, int from, int tag) override {
    return post(tensors, from, getRank(), tag, false);
  }

 private:
  // Whoever comes second copies, without the lock; then both sides are told.
  c10::intrusive_ptr<c10d::Work> post(const std::vector<at::Tensor>& tensors, int from, int to, int tag, bool sending) {
    STARTRAIL_CHECK(tensors.size() == 1, "a message is one tensor");
    STARTRAIL_CHECK(from >= 0 && from < getSize() && to >= 0 && to < getSize() && from != to, from, " to ", to);
    WorkPtr mine = c10::make_intrusive<LocalWork>(state_, getRank(), tensors[0]);
    const WorkPtr other = match(mine, from, to, tag, sending);
    if (!other) return mine;
    const at::Tensor &source = sending ? mine->tensor : other->tensor, &target = sending ? other->tensor : mine->tensor;
    STARTRAIL_CHECK(source.sizes() == target.sizes() && source.scalar_type() == target.scalar_type(), "rank ", from,
                    " sends ", source.scalar_type(), source.sizes(), " and rank ", to, " receives ",
                    target.scalar_type(), target.sizes());
    at::NoGradGuard no_grad;
    at::Tensor(target).copy_(source);
    // Let go of before the other side is told: what it frees then is free.
    mine->tensor.reset();
    other->tensor.reset();
    mine->done_us = RankTrace::now_us();
    mine->done = true;  // nobody waits for it yet
    other->complete();
    return mine;
  }

  // What the other side posted for this message, or null: then `mine` waits in the channel.
  WorkPtr match(const WorkPtr& mine, int from, int to, int tag, bool sending) {
    State::Inbox& inbox = state_->inboxes[to];
    std::lock_guard lock(inbox.mutex);
    state_->check_alive();
    const uint64_t key = static_cast<uint64_t>(from) << 32 | static_cast<uint32_t>(tag);
    const auto place = inbox.channels.try_emplace(key).first;
    State::Channel& channel = place->second;
    if (channel.works.empty() || channel.sends == sending) {
      channel.sends = sending;
      channel.works.push_back(mine);
      return {};
    }
    WorkPtr other = std::move(channel.works.front());
    channel.works.erase(channel.works.begin());
    if (channel.works.empty()) inbox.channels.erase(place);
    return other;
  }

  std::shared_ptr<State> state_;
};

}  // namespace

std::optional<double> arrived_us(const c10d::Work& work) {
  const auto* local = dynamic_cast<const LocalWork*>(&work);
  return local && local->done ? std::optional(local->done_us) : std::nullopt;
}

LocalWorld::LocalWorld(int ranks) : state_(std::make_shared<State>(ranks)) {}

LocalWorld::~LocalWorld() {
  // Unmatched messages hold the state that holds them.
  for (State::Inbox& inbox : state_->inboxes) {
    std::lock_guard lock(inbox.mutex);
    inbox.channels.clear();
  }
}

c10::intrusive_ptr<c10d::Backend> LocalWorld::backend(int rank) {
  return c10::make_intrusive<LocalBackend>(state_, rank);
}

bool LocalWorld::abort(const std::string& reason) {
  {
    std::lock_guard lock(state_->mutex);
    if (state_->failed) return false;
    state_->error = reason;
    state_->failed = true;
  }
  for (State::Waiter& waiter : state_->waiters) {
    std::lock_guard lock(waiter.mutex);  // a rank that has looked and not gone to sleep yet
    waiter.wake.notify_all();
  }
  return true;
}

}  // namespace startrail

#include "startrail/run/comm/local.h"

#include <condition_variable>
#include <deque>
#include <map>
#include <mutex>
#include <optional>
#include <tuple>

#include "startrail/base/error.h"

namespace startrail {
namespace {

struct LocalWork;
using WorkPtr = c10::intrusive_ptr<LocalWork>;

}  // namespace

struct LocalWorld::State {
  explicit State(int ranks) : ranks(ranks), wake(ranks) {}

  struct Channel {
    std::deque<WorkPtr> sends, receives;  // posted and not yet matched; at most one of the two has entries
  };

  const int ranks;
  std::mutex mutex;                                       // guards all below, and LocalWork::done
  std::deque<std::condition_variable> wake;               // one per rank, so that a message wakes only its receiver
  std::map<std::tuple<int, int, int>, Channel> channels;  // (from, to, tag)
  std::optional<std::string> error;

  void check_alive() const {  // with the mutex held
    if (error) throw ClusterError(*error);
  }
};

namespace {

using State = LocalWorld::State;

// A send or receive on its way.
struct LocalWork : c10d::Work {
  LocalWork(std::shared_ptr<State> state, int rank, at::Tensor tensor)
      : state(std::move(state)), rank(rank), tensor(std::move(tensor)) {}

  bool isCompleted() override {
    std::lock_guard lock(state->mutex);
    return done;
  }
  bool isSuccess() const override {
    std::lock_guard lock(state->mutex);
    return done;
  }
  bool wait(std::chrono::milliseconds timeout) override {
    std::unique_lock lock(state->mutex);
    const auto ready = [&] { return done || state->error; };
    if (timeout == c10d::kUnsetTimeout || timeout == kNoTimeout)
      state->wake[rank].wait(lock, ready);
    else if (!state->wake[rank].wait_for(lock, timeout, ready))
      throw ClusterError(cat("rank ", rank, " waited ", timeout.count(), " ms for a message that did not come"));
    if (!done) state->check_alive();
    return true;
  }

  std::shared_ptr<State> state;
  int rank = -1;      // who waits for it
  at::Tensor tensor;  // kept alive until the other side has copied
  bool done = false;
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
    WorkPtr mine = c10::make_intrusive<LocalWork>(state_, getRank(), tensors[0]), other;
    {
      std::lock_guard lock(state_->mutex);
      state_->check_alive();
      State::Channel& channel = state_->channels[{from, to, tag}];
      auto& waiting = sending ? channel.receives : channel.sends;
      if (waiting.empty()) {
        (sending ? channel.sends : channel.receives).push_back(mine);
        return mine;
      }
      other = waiting.front();
      waiting.pop_front();
    }
    const at::Tensor &source = sending ? mine->tensor : other->tensor, &target = sending ? other->tensor : mine->tensor;
    STARTRAIL_CHECK(source.sizes() == target.sizes() && source.scalar_type() == target.scalar_type(), "rank ", from,
                    " sends ", source.scalar_type(), source.sizes(), " and rank ", to, " receives ",
                    target.scalar_type(), target.sizes());
    at::NoGradGuard no_grad;
    at::Tensor(target).copy_(source);
    // Let go of before the other side is told: what it frees then is free.
    mine->tensor.reset();
    other->tensor.reset();
    std::lock_guard lock(state_->mutex);
    mine->done = other->done = true;
    state_->wake[other->rank].notify_all();
    return mine;
  }

  std::shared_ptr<State> state_;
};

}  // namespace

LocalWorld::LocalWorld(int ranks) : state_(std::make_shared<State>(ranks)) {}

LocalWorld::~LocalWorld() {
  // Unmatched messages hold the state that holds them.
  std::lock_guard lock(state_->mutex);
  state_->channels.clear();
}

c10::intrusive_ptr<c10d::Backend> LocalWorld::backend(int rank) {
  return c10::make_intrusive<LocalBackend>(state_, rank);
}

bool LocalWorld::abort(const std::string& reason) {
  std::lock_guard lock(state_->mutex);
  if (state_->error) return false;
  state_->error = reason;
  for (auto& condition : state_->wake) condition.notify_all();
  return true;
}

}  // namespace startrail

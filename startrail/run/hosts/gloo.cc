#include "startrail/run/hosts/gloo.h"

#include <algorithm>
#include <mutex>
#include <optional>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <unordered_set>

#include "startrail/base/error.h"
#include "startrail/run/comm/reason.h"

namespace startrail {
namespace {

// Longer than any job, and small enough to be added to a clock. Given with every wait: without it the time for
// connecting would count, which the group's own setTimeout does not change once it is connected.
constexpr std::chrono::hours kNever{24 * 365 * 10};

}  // namespace

struct GlooWorld::State {
  c10::intrusive_ptr<c10d::Backend> group;
  OnBroken on_broken;
  std::mutex mutex;
  std::chrono::milliseconds limit = kNever;
  std::optional<std::chrono::steady_clock::time_point> since;  // of the wait under way
  std::optional<std::string> error;
  std::unordered_set<c10d::Work*> waiting;  // to be woken by abort

  void check_alive() {
    std::lock_guard lock(mutex);
    if (error) throw ClusterError(*error);
  }
};

namespace {

using State = GlooWorld::State;

// A send or receive of Gloo's that can be ended from outside, and knows its peer.
class GlooWork : public c10d::Work {
 public:
  GlooWork(std::shared_ptr<State> state, c10::intrusive_ptr<c10d::Work> inner, at::Tensor tensor, int peer)
      : state_(std::move(state)), inner_(std::move(inner)), tensor_(std::move(tensor)), peer_(peer) {}
  ~GlooWork() override {
    if (done_) return;
    static auto* const lost = new std::vector<std::pair<c10::intrusive_ptr<c10d::Work>, at::Tensor>>;
    static std::mutex mutex;
    std::lock_guard lock(mutex);
    lost->emplace_back(std::move(inner_), std::move(tensor_));
  }

  // Gloo finishes a message only in wait().
  bool isCompleted() override { return done_; }
  bool isSuccess() const override { return done_; }

  bool wait(std::chrono::milliseconds) override {
    if (done_) return true;
    std::chrono::milliseconds limit;
    {
      std::lock_guard lock(state_->mutex);
      if (state_->error) throw ClusterError(*state_->error);
      state_->waiting.insert(inner_.get());
      state_->since = std::chrono::steady_clock::now();
      limit = state_->limit;
    }
    std::optional<std::string> broken;
    try {
      if (!inner_->wait(limit)) broken = "it was ended";
    } catch (const std::exception& error) {
      broken = reason_of(error);
    }
    {
      std::lock_guard lock(state_->mutex);
      state_->waiting.erase(inner_.get());
      state_->since.reset();
    }
    if (broken) {
      state_->check_alive();
      throw ClusterError(state_->on_broken(peer_, *broken));
    }
    done_ = true;
    inner_.reset();
    tensor_.reset();
    return true;
  }

 private:
  std::shared_ptr<State> state_;
  c10::intrusive_ptr<c10d::Work> inner_;
  at::Tensor tensor_;  // Gloo keeps the address only
  int peer_;
  bool done_ = false;
};

class GlooBackend : public c10d::Backend {
 public:
  explicit GlooBackend(std::shared_ptr<State> state)
      : Backend(state->group->getRank(), state->group->getSize()), state_(std::move(state)) {}

  const std::string getBackendName() const override { return "gloo"; }

  c10::intrusive_ptr<c10d::Work> send(std::vector<at::Tensor>& tensors, int to, int tag) override {
    return post(tensors, to, [&] { return state_->group->send(tensors, to, tag); });
  }
  c10::intrusive_ptr<c10d::Work> recv(std::vector<at::Tensor>& tensors, int from, int tag) override {
    return post(tensors, from, [&] { return state_->group->recv(tensors, from, tag); });
  }

 private:
  template <class Start>
  c10::intrusive_ptr<c10d::Work> post(const std::vector<at::Tensor>& tensors, int peer, const Start& start) {
    STARTRAIL_CHECK(tensors.size() == 1, "a message is one tensor");
    state_->check_alive();
    try {
      return c10::make_intrusive<GlooWork>(state_, start(), tensors[0], peer);
    } catch (const std::exception& error) {  // the connection is gone already, of which Gloo has types of its own
      throw ClusterError(state_->on_broken(peer, reason_of(error)));
    }
  }

  std::shared_ptr<State> state_;
};

}  // namespace

GlooWorld::GlooWorld(c10::intrusive_ptr<c10d::Store> store, const GlooOptions& options)
    : state_(std::make_shared<State>()) {
  using Gloo = c10d::ProcessGroupGloo;
  const auto settings = Gloo::Options::create(options.connect);
  settings->devices.push_back(Gloo::createDeviceForHostname(options.address));
  settings->threads = 1;  // of its collectives, which are not used
  try {
    state_->group = c10::make_intrusive<Gloo>(std::move(store), options.rank, options.size, settings);
  } catch (const std::exception& error) {
    throw ClusterError(cat("the ranks cannot connect to each other from ", options.address, ": ", reason_of(error)));
  }
  state_->on_broken = options.on_broken;
}

GlooWorld::GlooWorld(c10::intrusive_ptr<c10d::Backend> connected, OnBroken on_broken)
    : state_(std::make_shared<State>()) {
  state_->group = std::move(connected);
  state_->on_broken = std::move(on_broken);
}

void GlooWorld::set_limit(std::chrono::milliseconds limit) {
  std::lock_guard lock(state_->mutex);
  state_->limit = std::min<std::chrono::milliseconds>(limit, kNever);
}

std::chrono::milliseconds GlooWorld::waited() const {
  std::lock_guard lock(state_->mutex);
  if (!state_->since) return {};
  return std::chrono::duration_cast<std::chrono::milliseconds>(std::chrono::steady_clock::now() - *state_->since);
}

c10::intrusive_ptr<c10d::Backend> GlooWorld::backend() { return c10::make_intrusive<GlooBackend>(state_); }

void GlooWorld::abort(const std::string& reason) {
  std::lock_guard lock(state_->mutex);
  if (!state_->error) state_->error = reason;
  for (c10d::Work* work : state_->waiting) work->abort();
}

}  // namespace startrail

#include "startrail/run/comm/ranks.h"

#include <ATen/Parallel.h>
#include <algorithm>
#include <exception>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "startrail/base/error.h"
#include "startrail/base/threads.h"
#include "startrail/run/comm/local.h"
#include "startrail/run/comm/reason.h"
#include "startrail/run/comm/slots.h"

namespace startrail {
namespace {

class Threads : public World {
 public:
  explicit Threads(int ranks) : nodes_(ranks, "here") {}

  std::string name() const override { return "local"; }
  int size() const override { return static_cast<int>(nodes_.size()); }
  int first() const override { return 0; }
  const std::vector<std::string>& nodes() const override { return nodes_; }
  int ranks_here() const override { return size(); }
  int threads_each(int threads) const override {
    return std::max(1, (threads > 0 ? threads : available_cores()) / size());
  }
  void run(int threads, const Body& body) override;
  std::string once(const std::function<std::string()>& make) override { return make(); }
  bool looks() const override { return false; }
  void compare(const std::map<std::string, std::string>&) override {}
  void doing(const std::string&) override {}

 private:
  std::vector<std::string> nodes_;
};

void Threads::run(int threads, const Body& body) {
  LocalWorld world(size());
  const auto slots = std::make_shared<ComputeSlots>(std::min(size(), threads > 0 ? threads : available_cores()));
  const auto run_rank = [&](int rank) {
    // Per thread, and before any work: ATen takes the number from the calling thread.
    at::set_num_threads(threads_each(threads));
    body(std::make_shared<Group>(world.backend(rank), slots));
  };
  const auto stop = [&](int rank, const std::exception_ptr& error) {
    const std::string reason = cat("stopped because rank ", rank, " failed: ", reason_of(error));
    slots->abort(reason);
    world.abort(reason);
  };
  run_threads(size(), run_rank, stop);
}

}  // namespace

std::unique_ptr<World> local_world(int ranks) {
  if (ranks < 1) throw UserError(cat(ranks, " ranks cannot run: give 1 or more"));
  return std::make_unique<Threads>(ranks);
}

std::shared_ptr<World> world_of(World* processes, int ranks) {
  if (processes) return {processes, [](World*) {}};
  return local_world(ranks);
}

void run_ranks(int ranks, int threads, const World::Body& body) {
  if (threads < 1) throw UserError(cat(threads, " threads cannot run: give 1 or more"));
  local_world(ranks)->run(threads, body);
}

}  // namespace startrail

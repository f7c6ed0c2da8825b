#include "startrail/run/comm/ranks.h"

#include <ATen/Parallel.h>
#include <algorithm>
#include <exception>
#include <thread>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "startrail/base/error.h"
#include "startrail/run/comm/local.h"
#include "startrail/run/comm/slots.h"

namespace startrail {

void run_ranks(int ranks, int threads, const std::function<void(const std::shared_ptr<Group>&)>& body) {
  if (ranks < 1) throw UserError(cat(ranks, " ranks cannot run: give 1 or more"));
  if (threads < 1) throw UserError(cat(threads, " threads cannot run: give 1 or more"));
  LocalWorld world(ranks);
  const auto slots = ranks > threads ? std::make_shared<ComputeSlots>(threads) : nullptr;
  std::exception_ptr first;
  const auto run_rank = [&](int rank) {
    // Per thread, and before any work: ATen takes the number from the calling thread.
    at::set_num_threads(std::max(1, threads / ranks));
    try {
      body(std::make_shared<Group>(world.backend(rank), slots));
    } catch (const std::exception& error) {
      if (world.abort(cat("stopped because rank ", rank, " failed: ", error.what()))) first = std::current_exception();
    }
  };
  std::vector<std::thread> running;
  for (int rank = 0; rank < ranks; ++rank) running.emplace_back(run_rank, rank);
  for (std::thread& thread : running) thread.join();
  if (first) std::rethrow_exception(first);
}

}  // namespace startrail

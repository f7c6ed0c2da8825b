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

void run_ranks(int ranks, int threads, const std::function<void(const std::shared_ptr<Group>&)>& body) {
  if (ranks < 1) throw UserError(cat(ranks, " ranks cannot run: give 1 or more"));
  if (threads < 1) throw UserError(cat(threads, " threads cannot run: give 1 or more"));
  LocalWorld world(ranks);
  const auto slots = std::make_shared<ComputeSlots>(std::min(ranks, threads));
  const auto run_rank = [&](int rank) {
    // Per thread, and before any work: ATen takes the number from the calling thread.
    at::set_num_threads(std::max(1, threads / ranks));
    body(std::make_shared<Group>(world.backend(rank), slots));
  };
  const auto stop = [&](int rank, const std::exception_ptr& error) {
    std::string why = "unknown error";
    try {
      std::rethrow_exception(error);
    } catch (const std::exception& known) {
      why = reason_of(known);
    } catch (...) {
    }
    const std::string reason = cat("stopped because rank ", rank, " failed: ", why);
    slots->abort(reason);
    world.abort(reason);
  };
  run_threads(ranks, run_rank, stop);
}

}  // namespace startrail

// Two ranks of Gloo as threads of one process.
#include "startrail/run/hosts/gloo.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <thread>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include "startrail/base/error.h"
#include "startrail/base/threads.h"

namespace startrail {
namespace {

GlooOptions options_of(int rank) {
  GlooOptions options;
  options.rank = rank;
  options.size = 2;
  options.address = "127.0.0.1";
  options.connect = std::chrono::milliseconds(800);
  options.on_broken = [](int peer, const std::string& why) { return cat("rank ", peer, ": ", why); };
  return options;
}

// A wait may be longer than connecting was allowed to take: a rank that computes for ten minutes is not dead.
TEST(Gloo, WaitsHaveNoLimit) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  run_threads(2, [&](int rank) {
    GlooWorld world(store, options_of(rank));
    const auto backend = world.backend();
    std::vector<at::Tensor> first{at::full({1000}, rank == 0 ? 7.0 : 0.0)}, second{at::full({1 << 20}, 1.0)};
    if (rank == 1) usleep(1'500'000);
    const auto one = rank == 0 ? backend->send(second, 1, 1) : backend->recv(second, 0, 1);
    one->wait();
    if (rank == 0) usleep(1'500'000);
    const auto two = rank == 0 ? backend->send(first, 1, 2) : backend->recv(first, 0, 2);
    two->wait();
    EXPECT_EQ(first[0][999].item<double>(), 7);
  });
}

TEST(Gloo, WaitsEndWhenTheWorldDoes) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  run_threads(2, [&](int rank) {
    GlooWorld world(store, options_of(rank));
    if (rank == 0) {
      const auto backend = world.backend();
      std::vector<at::Tensor> tensors{at::zeros({10})};
      const auto work = backend->recv(tensors, 1, 3);
      std::thread other([&] {
        usleep(100'000);
        world.abort("all is over");
      });
      try {
        work->wait();
        ADD_FAILURE() << "nobody sent anything";
      } catch (const ClusterError& error) {
        EXPECT_STREQ(error.what(), "all is over");
      }
      EXPECT_THROW(backend->send(tensors, 1, 4), ClusterError);
      other.join();
    } else {
      usleep(400'000);
    }
  });
}

}  // namespace
}  // namespace startrail

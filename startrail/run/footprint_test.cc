// What ranks are measured to hold against what their plan says: plan/memory.cc plays the executor's lifetimes, and this
// is what keeps the two together.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <stdexcept>
#include <utility>
#include <vector>

#include "startrail/plan/make.h"
#include "startrail/plan/memory.h"
#include "startrail/run/trial.h"

namespace startrail {
namespace {

constexpr int kRanks = 8;

// Makes ranks begin every step together. Left alone, a rank on a crowded machine may lag behind the one that sends to
// it by many steps, which then holds all it has sent: 1.56 times the expected bytes were seen on a ring of 8 and 2
// cores.
class Pacer {
 public:
  void operator()(int, size_t, const Step&) {
    std::unique_lock lock(mutex_);
    const int64_t all = (arrived_++ / kRanks + 1) * kRanks;
    if (arrived_ == all) arrival_.notify_all();
    if (!arrival_.wait_for(lock, std::chrono::minutes(1), [&] { return arrived_ >= all; }))
      throw std::runtime_error("a rank did not come to its next step");
  }

 private:
  std::mutex mutex_;
  std::condition_variable arrival_;
  int64_t arrived_ = 0;
};

struct Case {
  AttentionOptions options;
  Problem problem;
  Sample sample;
};

// Everything that a trial holds on one rank: blocks and kernel scratch by the plan, and the caller's own tensors.
int64_t expected_bytes(const Case& c, int rank) {
  const Problem& p = c.problem;
  const int slices = c.options.grid.heads;
  const auto pass_bytes = [&](Pass pass) {
    return peak_bytes(make_plan(c.options.grid, pass), rank, p, [&](const Step& attend) {
      return choose_kernel("flash", at::kFloat, at::kCPU, p.dim)
          .scratch_bytes({p.batch, p.heads / slices, key_heads_of_slice(p.key_heads, slices),
                          chunk_tokens(p.queries, attend.in.chunks), chunk_tokens(p.keys, attend.out.chunks), p.dim,
                          p.element_bytes, pass != Pass::forward},
                         /*threads=*/1);
    });
  };
  const int64_t row = p.batch * p.dim * p.element_bytes;
  const int64_t q = chunk_tokens(p.queries, rank) * p.heads * row, k = chunk_tokens(p.keys, rank) * p.key_heads * row;
  // The caller's q, k, v and dout, and in the backward out, where it is not what the forward saved.
  return 2 * q + 2 * k +
         std::max(pass_bytes(Pass::forward), pass_bytes(backward_pass(c.options, p)) + (slices > 1 ? q : 0));
}

// Measured over expected, the least and the most of all ranks.
std::pair<double, double> ratios(Case c) {
  Pacer pacer;
  c.options.on_step = std::ref(pacer);
  const TrialRun run = run_trial(c.sample, c.options, 2);
  double least = 1e9, most = 0;
  for (int rank = 0; rank < kRanks; ++rank) {
    const double ratio = static_cast<double>(run.ranks[rank].peak_bytes) / static_cast<double>(expected_bytes(c, rank));
    least = std::min(least, ratio);
    most = std::max(most, ratio);
  }
  return {least, most};
}

struct Way {
  Direction direction;
  at::ScalarType type, partial;
};

void expect_band(const Mask& mask, const std::vector<int>& key_heads, double least, double most) {
  for (const char* grid : {"ring", "startrail:2", "allgather", "ulysses", "mesh:4", "heads=2,team=2,ring=2"})
    for (int kv : key_heads)
      for (const Way& way : {Way{Direction::keys, at::kFloat, at::kFloat},
                             {Direction::queries, at::kFloat, at::kBFloat16},
                             {Direction::keys, at::kBFloat16, at::kBFloat16},
                             {Direction::queries, at::kBFloat16, at::kFloat}}) {
        Case c;
        c.options.grid = parse_grid(grid, kRanks);
        c.options.tokens = 515;
        c.options.layout = Order::zigzag;
        c.options.mask = mask;
        c.options.backward = way.direction;
        c.options.partial = way.partial;
        c.problem = make_problem(c.options, kRanks, 1, 8, kv, 32, way.type);
        c.sample = make_sample({.heads = 8, .key_heads = kv, .dim = 32, .type = way.type}, 515, 515);
        const auto [low, high] = ratios(c);
        EXPECT_TRUE(low >= least && high <= most)
            << "measured " << low << " to " << high << " of the expected bytes: " << grid << ", " << kv
            << " key/value heads, " << way.type << " with partials " << way.partial << ", backward "
            << (way.direction == Direction::keys ? "keys" : "queries");
      }
}

// Tiles are whole blocks: what is left between the two is how soon a message arrives.
TEST(Footprint, IsWhatThePlanSays) { expect_band({}, {8, 1}, 0.85, 1.01); }

// Tiles are smaller than blocks, and so is what the kernel needs for them.
TEST(Footprint, IsAtMostThatWithACausalMask) { expect_band({.causal = true}, {2}, 0.6, 1.01); }

}  // namespace
}  // namespace startrail

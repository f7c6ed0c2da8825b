// What ranks are measured to hold against what their plan says: plan/memory.cc plays the executor's lifetimes, and this
// is what keeps the two together.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>
#include <vector>

#include "startrail/plan/make.h"
#include "startrail/plan/memory.h"
#include "startrail/run/footprint_testing.h"
#include "startrail/run/trial.h"

namespace startrail {
namespace {

constexpr int kRanks = 8;

struct Case {
  AttentionOptions options;
  Problem problem;
  Sample sample;
};

// Measured over expected, the least and the most of all ranks.
std::pair<double, double> ratios(const Case& c) {
  const TrialRun run = run_trial(c.sample, c.options, 2);
  double least = 1e9, most = 0;
  for (int rank = 0; rank < c.options.grid.ranks(); ++rank) {
    const double ratio = static_cast<double>(run.ranks[rank].peak_bytes) /
                         static_cast<double>(expected_bytes(c.options, c.problem, at::kFloat, rank,
                                                            std::max(1, 2 / c.options.grid.ranks())));
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
        c.options.order = Order::zigzag;
        c.options.mask = mask;
        c.options.backward = way.direction;
        c.options.partial = way.partial;
        c.problem = make_problem(c.options, 1, 8, kv, 32, way.type);
        c.sample = make_sample({.heads = 8, .key_heads = kv, .dim = 32, .type = way.type}, 515, 515);
        const auto [low, high] = ratios(c);
        EXPECT_TRUE(low >= least && high <= most)
            << "measured " << low << " to " << high << " of the expected bytes: " << grid << ", " << kv
            << " key/value heads, " << way.type << " with partials " << way.partial << ", backward "
            << (way.direction == Direction::keys ? "keys" : "queries");
      }
}

// Tiles are whole blocks: what is left between the two is how soon a message arrives.
TEST(Footprint, IsWhatThePlanSays) { expect_band({}, {8, 1}, 0.7, 1); }

// Tiles are smaller than blocks, and so is what the kernel needs for them.
TEST(Footprint, IsAtMostThatWithACausalMask) { expect_band({.causal = true}, {2}, 0.5, 1); }

// Few keys beside many queries, and no ring: then the most is held when the backward begins.
TEST(Footprint, IsWhatThePlanSaysWhereQueriesAreMost) {
  for (int ranks : {1, 2})
    for (at::ScalarType type : {at::kFloat, at::kBFloat16}) {
      Case c;
      c.options.grid = parse_grid("ring", ranks);
      c.options.tokens = 1024 * ranks;
      c.options.mask = {.window = 16};
      c.problem = make_problem(c.options, 1, 16, 1, 64, type);
      c.sample = make_sample({.heads = 16, .key_heads = 1, .dim = 64, .type = type}, 1024 * ranks, 1024 * ranks);
      const auto [low, high] = ratios(c);
      EXPECT_LE(high, 1) << ranks << " ranks, " << type;
      EXPECT_GE(low, 0.7) << ranks << " ranks, " << type;
    }
}

// Some receivers are so late that whoever sends to them could send all it has: it must not, and must not hold it.
TEST(Footprint, IsBoundedWhenReceiversAreLate) {
  for (const char* grid : {"ring", "startrail:2"})
    for (Direction direction : {Direction::keys, Direction::queries}) {
      Case c;
      c.options.grid = parse_grid(grid, 16);
      c.options.tokens = 16 * 64;
      c.options.backward = direction;
      c.options.on_step = [](int rank, size_t index, const Step&) {
        if (rank % 5 == 2 && index < 6) std::this_thread::sleep_for(std::chrono::milliseconds(20));
      };
      c.problem = make_problem(c.options, 1, 8, 8, 32, at::kFloat);
      c.sample = make_sample({.heads = 8, .key_heads = 8, .dim = 32}, 16 * 64, 16 * 64);
      const auto [low, high] = ratios(c);
      EXPECT_LE(high, 1) << grid;
      EXPECT_GE(low, 0.6) << grid;
    }
}

}  // namespace
}  // namespace startrail

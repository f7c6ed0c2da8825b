// Cases of the promise "exact on every grid", shared by the fast and the long tests.
#pragma once

#include <algorithm>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "startrail/run/trial.h"

namespace startrail {

// The sequence, without how it is split: one float64 reference serves every run of it.
struct WholeSequence {
  Mask mask;
  int64_t tokens = 64;
  int64_t heads = 16, key_heads = 16, dim = 8;
  uint64_t seed = 1;
};

// A split of it.
struct Split {
  Grid grid;
  Order order = Order::zigzag;
  PieceLists listed = {};
  Direction direction = Direction::keys;
  at::ScalarType type = at::kFloat;
};

// The masks that are tried, by name, for a number of tokens.
const std::vector<std::string>& mask_names();
Mask make_mask(const std::string& name, int64_t tokens);

// Holds one sequence's inputs, its float64 answer and, when needed, PyTorch's own errors.
class Proof {
 public:
  explicit Proof(const WholeSequence& sequence);
  // "" when the split run is within the promise and sends what the formulas say, else what went wrong.
  std::string check(const Split& split);

 private:
  Errors pytorch_errors(at::ScalarType type);

  WholeSequence sequence_;
  Sample sample_;  // bfloat16 values, so that both types compute the same thing
  Answer truth_;
  std::vector<std::pair<at::ScalarType, Errors>> pytorch_errors_;
};

std::string to_text(const Split& split);

// Sequences and splits drawn at random: the same for the same seed.
class RandomCases {
 public:
  explicit RandomCases(uint64_t seed) : random_(seed) {}

  template <class Values>
  auto pick(const Values& values) {
    return values[random_() % values.size()];
  }
  WholeSequence sequence(int64_t longest);
  // Nothing when the grid drawn does not fit the heads.
  std::optional<Split> split(int ranks, const WholeSequence& sequence);

 private:
  PieceLists lists(int ranks, int64_t tokens);

  std::mt19937_64 random_;
};

// Hands out grids that fit, the least used first.
class GridTurns {
 public:
  explicit GridTurns(int ranks) {
    for (const Grid& grid : every_grid(ranks)) grids_.push_back({0, grid});
  }
  Grid next(int64_t heads, int64_t key_heads) {
    std::pair<int, Grid>* best = nullptr;
    for (auto& turn : grids_)
      if (heads_fit(turn.second.heads, heads, key_heads) && (!best || turn.first < best->first)) best = &turn;
    ++best->first;
    return best->second;
  }
  size_t used() const {
    return std::count_if(grids_.begin(), grids_.end(), [](const auto& turn) { return turn.first > 0; });
  }

 private:
  std::vector<std::pair<int, Grid>> grids_;
};

// Every grid of 16 ranks, and every pair of (mask, layout, direction, GQA ratio, length, type) on some grid. Each
// sequence has one float64 reference that serves three splits.
void expect_every_pair(const std::vector<int64_t>& lengths);

}  // namespace startrail

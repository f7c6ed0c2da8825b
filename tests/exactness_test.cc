// The promise, on a covering set: every grid of 16 ranks, every pair of (mask, layout, direction, GQA ratio, length,
// type), and a sample of other rank counts. Each sequence has one float64 reference that serves three splits.
#include "tests/exactness.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <map>
#include <set>

#include "startrail/base/text.h"

namespace startrail {
namespace {

constexpr std::array<Order, 3> kOrders = {Order::contiguous, Order::zigzag, Order::striped};
constexpr std::array<int64_t, 3> kRatios = {1, 2, 8};
constexpr std::array<int64_t, 4> kLengths = {1000, 1021, 17, 4096};

// Counts the pairs of settings that have met.
class Pairs {
 public:
  void add(const std::vector<std::string>& settings) {
    for (size_t i = 0; i < settings.size(); ++i) {
      values_[i].insert(settings[i]);
      for (size_t j = i + 1; j < settings.size(); ++j) met_[{i, j}].insert({settings[i], settings[j]});
    }
  }
  void expect_complete() const {
    for (const auto& [factors, met] : met_)
      EXPECT_EQ(met.size(), values_.at(factors.first).size() * values_.at(factors.second).size())
          << "factors " << factors.first << " and " << factors.second;
  }

 private:
  std::map<size_t, std::set<std::string>> values_;
  std::map<std::pair<size_t, size_t>, std::set<std::pair<std::string, std::string>>> met_;
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

TEST(Exactness, HoldsOnEveryGridOf16AndEveryPairOfSettings) {
  GridTurns grids(16);
  Pairs pairs;
  size_t cases = 0;
  for (size_t m = 0; m < mask_names().size(); ++m)
    for (size_t n = 0; n < kLengths.size(); ++n) {
      const int64_t ratio = kRatios[(m + n) % 3];
      // Long sequences have fewer heads, or they would take most of the test's time.
      const bool is_long = kLengths[n] > 2000;
      const int64_t heads = !is_long ? 16 : ratio == 8 ? 8 : 2, dim = is_long ? 4 : 8;
      Proof proof({.mask = make_mask(mask_names()[m], kLengths[n]),
                   .tokens = kLengths[n],
                   .heads = heads,
                   .key_heads = heads / ratio,
                   .dim = dim,
                   .seed = 100 * m + n});
      for (size_t s = 0; s < 3; ++s) {
        Split split{.grid = grids.next(heads, heads / ratio), .order = kOrders[s]};
        split.direction = (m + n + s) % 2 ? Direction::queries : Direction::keys;
        split.type = (m + n / 2 + s / 2) % 2 ? at::kBFloat16 : at::kFloat;
        EXPECT_EQ(proof.check(split), "");
        pairs.add({mask_names()[m], to_text(split.order), split.direction == Direction::keys ? "keys" : "queries",
                   cat(ratio), cat(kLengths[n]), cat(split.type)});
        ++cases;
      }
    }
  EXPECT_EQ(grids.used(), 35u);
  pairs.expect_complete();
  std::cout << cases << " cases\n";
}

TEST(Exactness, HoldsOnOtherRankCounts) {
  size_t cases = 0;
  for (int ranks : {6, 8, 12, 24, 32}) {
    GridTurns grids(ranks);
    for (int skipped = 0; skipped < ranks / 3; ++skipped) grids.next(ranks, ranks / 2);  // not only the first ones
    Proof proof({.mask = make_mask(mask_names()[ranks % mask_names().size()], 333),
                 .tokens = 333,
                 .heads = ranks,
                 .key_heads = ranks / 2,
                 .seed = static_cast<uint64_t>(ranks)});
    for (size_t s = 0; s < 6; ++s, ++cases) {
      const Grid grid = grids.next(ranks, ranks / 2);
      EXPECT_EQ(proof.check({grid, kOrders[s % 3], s % 2 ? Direction::queries : Direction::keys,
                             s / 2 % 2 ? at::kBFloat16 : at::kFloat}),
                "");
    }
  }
  std::cout << cases << " cases\n";
}

}  // namespace
}  // namespace startrail

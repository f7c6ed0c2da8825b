#include "startrail/layout/grid.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "startrail/base/testing.h"

namespace startrail {
namespace {

constexpr const char* kForms =
    "ring, startrail:C, ulysses, usp:U, allgather, mesh:A, or heads=...,team=...,ring=...,stripe=...[,order=...]";

std::vector<std::array<Axis, 4>> every_order() {
  std::vector<std::array<Axis, 4>> orders;
  std::array<Axis, 4> order = kAxes;
  do orders.push_back(order);
  while (std::next_permutation(order.begin(), order.end()));
  return orders;
}

std::string refusal(std::string_view text, int ranks) {
  return error_of([&] { parse_grid(text, ranks); });
}

TEST(Grid, NamesAreGrids) {
  EXPECT_EQ(parse_grid("ring", 16), (Grid{.ring = 16}));
  EXPECT_EQ(parse_grid("startrail:2", 16), (Grid{.team = 2, .ring = 4, .stripe = 2}));
  EXPECT_EQ(parse_grid("startrail:4", 16), (Grid{.team = 4, .stripe = 4}));
  EXPECT_EQ(parse_grid("ulysses", 16), (Grid{.heads = 16}));
  EXPECT_EQ(parse_grid("usp:4", 16), (Grid{.heads = 4, .ring = 4}));
  EXPECT_EQ(parse_grid("allgather", 16), (Grid{.stripe = 16}));
  EXPECT_EQ(parse_grid("mesh:8", 16), (Grid{.team = 8, .stripe = 2}));
}

TEST(Grid, FullFormFillsInTheRing) {
  EXPECT_EQ(parse_grid("heads=2,team=2,ring=2,stripe=2", 16), (Grid{2, 2, 2, 2}));
  EXPECT_EQ(parse_grid("team=2,stripe=2", 16), (Grid{1, 2, 4, 2}));
  EXPECT_EQ(parse_grid("stripe=16", 16), (Grid{1, 1, 1, 16}));
  EXPECT_EQ(parse_grid("team=4,order=ring-stripe-team-heads", 8),
            (Grid{1, 4, 2, 1, {Axis::ring, Axis::stripe, Axis::team, Axis::heads}}));
}

TEST(Grid, FullFormReadsBack) {
  EXPECT_EQ(to_text(Grid{1, 2, 4, 2}), "heads=1,team=2,ring=4,stripe=2");
  EXPECT_EQ(to_text(Grid{1, 2, 4, 2, {Axis::ring, Axis::team, Axis::heads, Axis::stripe}}),
            "heads=1,team=2,ring=4,stripe=2,order=ring-team-heads-stripe");
  for (Grid grid : every_grid(24))
    for (const auto& order : every_order()) {
      grid.order = order;
      EXPECT_EQ(parse_grid(to_text(grid), 24), grid) << to_text(grid);
    }
}

TEST(Grid, FirstAxisRunsOverNeighbours) {
  const Grid usual{2, 3, 4, 5};
  EXPECT_EQ(place_of(usual, 0), (Place{0, 0, 0, 0}));
  EXPECT_EQ(place_of(usual, 1), (Place{1, 0, 0, 0}));
  EXPECT_EQ(place_of(usual, 2), (Place{0, 1, 0, 0}));
  EXPECT_EQ(place_of(usual, 6), (Place{0, 0, 1, 0}));
  EXPECT_EQ(place_of(usual, 24), (Place{0, 0, 0, 1}));
  const Grid other{2, 3, 4, 5, {Axis::stripe, Axis::heads, Axis::ring, Axis::team}};
  EXPECT_EQ(place_of(other, 1), (Place{0, 0, 0, 1}));
  EXPECT_EQ(place_of(other, 5), (Place{1, 0, 0, 0}));
  EXPECT_EQ(place_of(other, 10), (Place{0, 0, 1, 0}));
  EXPECT_EQ(place_of(other, 40), (Place{0, 1, 0, 0}));
}

TEST(Grid, EveryRankHasItsOwnPlace) {
  for (const auto& order : every_order()) {
    const Grid grid{2, 3, 4, 5, order};
    std::set<Place> places;
    for (int rank = 0; rank < grid.ranks(); ++rank) {
      const Place place = place_of(grid, rank);
      for (Axis axis : kAxes) EXPECT_LT(place[static_cast<int>(axis)], grid.size(axis));
      EXPECT_EQ(rank_at(grid, place), rank) << to_text(grid);
      places.insert(place);
    }
    EXPECT_EQ(places.size(), 120u) << to_text(grid);
  }
}

TEST(Grid, LinesDifferOnOneAxisOnly) {
  for (const auto& order : every_order()) {
    const Grid grid{2, 3, 4, 5, order};
    for (int rank = 0; rank < grid.ranks(); ++rank)
      for (Axis axis : kAxes) {
        const std::vector<int> line = line_through(grid, rank, axis);
        ASSERT_EQ(static_cast<int>(line.size()), grid.size(axis));
        for (int i = 0; i < grid.size(axis); ++i) {
          Place place = place_of(grid, rank);
          place[static_cast<int>(axis)] = i;
          EXPECT_EQ(line[i], rank_at(grid, place)) << to_text(grid) << ", rank " << rank << ", " << to_text(axis);
        }
      }
  }
}

TEST(Grid, EveryGridIsEveryFactorisation) {
  EXPECT_EQ(every_grid(1).size(), 1u);
  EXPECT_EQ(every_grid(7).size(), 4u);
  EXPECT_EQ(every_grid(16).size(), 35u);  // 4 twos over 4 axes
  for (int ranks = 1; ranks <= 32; ++ranks) {
    std::set<std::string> texts;
    for (const Grid& grid : every_grid(ranks)) {
      EXPECT_EQ(grid.ranks(), ranks);
      texts.insert(to_text(grid));
    }
    EXPECT_EQ(texts.size(), every_grid(ranks).size());
  }
}

TEST(Grid, SchemeNamesReadBack) {
  std::set<std::string> names;
  for (int ranks = 1; ranks <= 24; ++ranks)
    for (const Grid& grid : every_grid(ranks)) {
      const std::string name = scheme_of(grid);
      EXPECT_EQ(name_of(grid), name.empty() ? to_text(grid) : name);
      if (name.empty()) continue;
      EXPECT_EQ(parse_grid(name, ranks), grid) << name << " on " << ranks;
      if (ranks == 16) names.insert(name);
    }
  EXPECT_EQ(names, (std::set<std::string>{"ring", "startrail:2", "startrail:4", "ulysses", "usp:2", "usp:4", "usp:8",
                                          "allgather", "mesh:2", "mesh:8", "mesh:16"}));
}

TEST(Grid, RefusesUnknownNames) {
  for (const char* text : {"", "loong:4", "team", "colour=3", "team=2,"})
    EXPECT_EQ(refusal(text, 16), cat("grid '", text, "' is not known; valid grids: ", kForms));
  EXPECT_EQ(refusal("ring", 0), "0 ranks cannot form a grid: give 1 or more");
}

TEST(Grid, RefusesNamesThatDoNotFit) {
  EXPECT_EQ(refusal("startrail:3", 16),
            "startrail:3 does not fit 16 ranks: C*C must divide the ranks; valid on 16 ranks: startrail:1, "
            "startrail:2, startrail:4");
  EXPECT_EQ(refusal("startrail:3", 12),
            "startrail:3 does not fit 12 ranks: C*C must divide the ranks; valid on 12 ranks: startrail:1, "
            "startrail:2");
  EXPECT_EQ(refusal("usp:5", 6),
            "usp:5 does not fit 6 ranks: U must divide the ranks; valid on 6 ranks: usp:1, usp:2, usp:3, usp:6");
  EXPECT_EQ(refusal("mesh:0", 4),
            "mesh:0 does not fit 4 ranks: A must divide the ranks; valid on 4 ranks: mesh:1, mesh:2, mesh:4");
  EXPECT_EQ(refusal("usp:two", 4), "usp: 'two' is not a whole number");
}

TEST(Grid, RefusesFullFormsThatDoNotFit) {
  EXPECT_EQ(refusal("team=3", 16),
            "heads 1 x team 3 x ring 1 x stripe 1 is 3, but there are 16 ranks: the product must be equal, so each "
            "axis is one of 1, 2, 4, 8, 16");
  EXPECT_EQ(refusal("team=2,ring=2", 16),
            "heads 1 x team 2 x ring 2 x stripe 1 is 4, but there are 16 ranks: the product must be equal, so each "
            "axis is one of 1, 2, 4, 8, 16; with these, ring must be 8");
  EXPECT_EQ(refusal("team=32", 16), "team 32 does not fit 16 ranks: it must divide 16; valid: 1, 2, 4, 8, 16");
  EXPECT_EQ(refusal("stripe=0", 4), "stripe 0 does not fit 4 ranks: it must divide 4; valid: 1, 2, 4");
  EXPECT_EQ(refusal("team=x", 4), "team 'x' is not a whole number");
  EXPECT_EQ(refusal("team=2,team=2", 4), "grid 'team=2,team=2' gives team twice: give it once");
  for (const char* order : {"ring", "heads-team-ring-ring", "heads-team-ring-stripe-heads", "a-b-c-d"})
    EXPECT_EQ(refusal(cat("team=2,order=", order), 4),
              cat("order '", order, "' must name heads, team, ring and stripe once each, from the axis over ",
                  "neighbouring ranks to the outermost, such as order=heads-team-ring-stripe"));
}

TEST(Heads, FitWhenTheyDivide) {
  const auto divides = [](int part, int whole) { return whole % part == 0; };
  for (int u = 1; u <= 12; ++u)
    for (int query_heads = 1; query_heads <= 24; ++query_heads)
      for (int key_heads = 1; key_heads <= query_heads; ++key_heads) {
        const bool fits = divides(key_heads, query_heads) && divides(u, query_heads) &&
                          (divides(u, key_heads) || divides(key_heads, u));
        const std::string refused = error_of([&] { check_heads({.heads = u}, query_heads, key_heads); });
        EXPECT_EQ(refused == "no error", fits) << u << " of " << query_heads << ", " << key_heads << ": " << refused;
      }
}

TEST(Heads, RefusalsGiveTheChoices) {
  EXPECT_EQ(error_of([] { check_heads({.heads = 2}, 8, 0); }), "8 heads and 0 key/value heads: give 1 or more of each");
  EXPECT_EQ(error_of([] { check_heads({.heads = 2}, 8, 3); }),
            "3 key/value heads do not divide 8 heads; valid key/value heads: 1, 2, 4, 8");
  EXPECT_EQ(error_of([] { check_heads({.heads = 6}, 12, 4); }),
            "heads axis 6 does not fit 12 heads with 4 key/value heads: it must divide the heads, and divide or be "
            "divided by the key/value heads; valid: 1, 2, 4, 12");
}

TEST(Grid, NamesTheNearestOfAMisspeltOne) {
  const auto refusal = [](const char* text) {
    const std::string error = error_of([&] { parse_grid(text, 16); });
    return error.substr(0, error.find("; valid grids: "));
  };
  EXPECT_EQ(refusal("startrial:2"), "grid 'startrial:2' is not known, the nearest is startrail:2");
  EXPECT_EQ(refusal("startrail"), "grid 'startrail' is not known, the nearest is startrail:C");
  EXPECT_EQ(refusal("rings"), "grid 'rings' is not known, the nearest is ring");
  EXPECT_EQ(refusal("rnig"), "grid 'rnig' is not known, the nearest is ring");
  EXPECT_EQ(refusal("ring:2"), "grid 'ring:2' is not known, the nearest is ring");
  EXPECT_EQ(refusal("ulyses"), "grid 'ulyses' is not known, the nearest is ulysses");
  EXPECT_EQ(refusal("teem=2,ring=8"), "grid 'teem=2,ring=8' is not known: for 'teem' the nearest is team");
  EXPECT_EQ(refusal("pipeline"), "grid 'pipeline' is not known");
}

}  // namespace
}  // namespace startrail

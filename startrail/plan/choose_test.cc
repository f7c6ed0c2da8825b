#include "startrail/plan/choose.h"

#include <gtest/gtest.h>

#include "startrail/plan/make.h"
#include "startrail/plan/memory.h"

namespace startrail {
namespace {

struct Case {
  int ranks, heads, key_heads, element_bytes;
};
constexpr Case kCases[] = {{1, 4, 4, 4},  {6, 1, 1, 4},  {8, 4, 2, 4},   {8, 1, 1, 4},  {8, 3, 1, 2},
                           {12, 6, 3, 2}, {16, 5, 5, 2}, {16, 16, 1, 2}, {16, 7, 1, 4}, {24, 12, 4, 2}};

Problem problem_of(const Case& c) {
  const Layout layout{Order::zigzag, int64_t{64} * c.ranks, c.ranks};
  return make_problem(
      {.heads = c.heads, .key_heads = c.key_heads, .dim = 32, .element_bytes = c.element_bytes, .partial_bytes = 4},
      layout, layout);
}

// Counted message by message, both backward directions tried.
int64_t counted(const Grid& grid, const Problem& problem, bool backward) {
  const auto bytes = [&](Pass pass) { return count_volume(make_plan(grid, pass), 0, problem).total(); };
  return bytes(Pass::forward) + (backward ? std::min(bytes(Pass::backward_keys), bytes(Pass::backward_queries)) : 0);
}

TEST(ChooseGrid, NoOtherGridSendsLess) {
  for (const Case& c : kCases)
    for (bool backward : {true, false}) {
      const Problem problem = problem_of(c);
      const GridChoice choice = choose_grid(problem, {.backward = backward});
      EXPECT_EQ(choice.grid.ranks(), c.ranks);
      ASSERT_TRUE(heads_fit(choice.grid.heads, c.heads, c.key_heads)) << to_text(choice.grid);
      const int64_t sent = counted(choice.grid, problem, backward);
      int fitting = 0, equal = 0;
      for (const Grid& grid : every_grid(c.ranks)) {
        if (!heads_fit(grid.heads, c.heads, c.key_heads)) continue;
        ++fitting;
        const int64_t other = counted(grid, problem, backward);
        EXPECT_GE(other, sent) << to_text(grid) << " sends less than " << to_text(choice.grid);
        equal += other == sent;
      }
      EXPECT_EQ(choice.fitting, fitting);
      EXPECT_EQ(choice.equal, equal);
    }
}

TEST(ChooseGrid, TakesOfEqualOnesTheOneThatHoldsLeast) {
  const Problem problem = problem_of({8, 1, 1, 4});
  const GridChoice choice = choose_grid(problem, {.backward = false});
  ASSERT_GT(choice.equal, 1);
  const int64_t sent = counted(choice.grid, problem, false);
  for (const Grid& grid : every_grid(8))
    if (heads_fit(grid.heads, 1, 1) && counted(grid, problem, false) == sent) {
      EXPECT_GE(peak_bytes(grid, Pass::forward, problem), peak_bytes(choice.grid, Pass::forward, problem))
          << to_text(grid);
    }
}

TEST(ChooseGrid, CountsHeadsThatAreTradedOnceMore) {
  const Problem problem = problem_of({8, 4, 2, 4});
  const Grid heads{.heads = 4, .ring = 2}, ring{.ring = 8};
  const Exchange once{}, again{.restores = true};
  EXPECT_EQ(exchange_bytes(ring, 0, problem, again), exchange_bytes(ring, 0, problem, once));
  // 3 others get each: a head of the queries, and one of the keys and values, of 64 tokens x 32 floats.
  EXPECT_EQ(exchange_bytes(heads, 0, problem, again) - exchange_bytes(heads, 0, problem, once), 3 * 3 * 64 * 32 * 4);
}

// With one key/value head and queries that cannot be split, keys are small: passing them around is cheapest.
TEST(ChooseGrid, TakesTheRingWhereKeysAreFew) {
  EXPECT_EQ(scheme_of(choose_grid(problem_of({8, 13, 1, 2}), {}).grid), "ring");
  EXPECT_EQ(scheme_of(choose_grid(problem_of({1, 4, 4, 4}), {}).grid), "ring");
}

TEST(ChooseGrid, IsQuickOnManyRanks) {
  const GridChoice choice = choose_grid(problem_of({1024, 32, 32, 2}), {});
  EXPECT_EQ(choice.grid.ranks(), 1024);
  EXPECT_EQ(choice.grid.heads, 32);
}

}  // namespace
}  // namespace startrail

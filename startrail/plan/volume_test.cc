#include "startrail/plan/volume.h"

#include <gtest/gtest.h>

#include <map>

#include "startrail/plan/check.h"
#include "startrail/plan/make.h"
#include "startrail/plan/text.h"

namespace startrail {
namespace {

Problem make_problem(int ranks, int heads, int key_heads, int64_t query_tokens, int64_t key_tokens) {
  Problem problem;
  problem.batch = 2;
  problem.heads = heads;
  problem.key_heads = key_heads;
  problem.queries = make_chunks({Order::zigzag, query_tokens, ranks});
  problem.keys = make_chunks({Order::zigzag, key_tokens, ranks});
  return problem;
}

// 16 heads of dim 64 in fp32 and 100 tokens a rank.
Problem even_problem(int ranks, int key_heads = 16) {
  return make_problem(ranks, 16, key_heads, 100 * ranks, 100 * ranks);
}

// Bytes of A: one rank's queries.
double unit(const Problem& problem) {
  return static_cast<double>(problem.batch * problem.queries.tokens(0) * problem.heads * problem.dim *
                             problem.element_bytes);
}

double total(const Grid& grid, Pass pass, const Problem& problem) {
  return static_cast<double>(formula_volume(grid, pass, 0, problem).total()) / unit(problem);
}

// Query heads to a key/value head within one slice: g' of docs/algorithm.md.
double sharing(const Grid& grid, const Problem& problem) {
  return static_cast<double>(problem.heads / grid.heads) / key_heads_of_slice(problem.key_heads, grid.heads);
}

// Head counts that fit a grid: MHA, two and eight queries to a key, one key, and fewer keys than slices.
std::vector<std::pair<int, int>> every_head_count(const Grid& grid) {
  const int heads = 8 * grid.heads;
  std::vector<std::pair<int, int>> counts = {{heads, heads}, {heads, heads / 2}, {heads, heads / 8}, {heads, 1}};
  if (grid.heads > 2 && grid.heads % 2 == 0) counts.push_back({heads, grid.heads / 2});
  return counts;
}

TEST(Volume, CountEqualsFormula) {
  for (int ranks = 1; ranks <= 16; ++ranks)
    for (const Grid& grid : every_grid(ranks))
      for (Pass pass : kPasses) {
        const Plan plan = make_plan(grid, pass);
        std::vector<Problem> problems;
        for (const auto& [heads, key_heads] : every_head_count(grid))
          for (const auto& [queries, keys] : std::vector<std::pair<int64_t, int64_t>>{
                   {4 * ranks, 4 * ranks}, {5 * ranks + 3, 5 * ranks + 3}, {ranks / 2 + 1, ranks / 2 + 1}, {37, 11}})
            for (const auto& [element, partial] : {std::pair{4, 4}, std::pair{2, 4}, std::pair{2, 2}}) {
              problems.push_back(make_problem(ranks, heads, key_heads, queries, keys));
              problems.back().dim = 8;
              problems.back().element_bytes = element;
              problems.back().partial_bytes = partial;
            }
        ASSERT_NO_THROW(check_volume(plan, grid, problems)) << to_text(grid) << ", " << to_text(pass);
      }
}

TEST(Volume, IsTheClosedFormulaInElements) {
  for (int key_heads : {16, 8, 2, 1})
    for (const Grid& grid : every_grid(16)) {
      const Problem problem = even_problem(16, key_heads);
      const double u = grid.heads, a = grid.team, b = grid.stripe, c = grid.ring, g = sharing(grid, problem), d = 64;
      const double heads = (2 + 2 / g) * (u - 1) / u, lse = (a - 1) / d;
      EXPECT_DOUBLE_EQ(total(grid, Pass::forward, problem), heads + 2 * (a - 1) + 2 / g * (b * c - 1) + lse)
          << to_text(grid);
      EXPECT_DOUBLE_EQ(total(grid, Pass::backward_keys, problem),
                       heads + 3 * (a - 1) + 4 / g * (b * c - 1) + 2 * (a - 1) / d)
          << to_text(grid);
      EXPECT_DOUBLE_EQ(total(grid, Pass::backward_queries, problem),
                       heads + 3 * (a * c - 1) + 4 / g * (b - 1) + 2 * (a * c - 1) / d)
          << to_text(grid);
    }
}

TEST(Volume, StarTrailSendsTwoFifthsOfTheRing) {
  Problem problem = even_problem(16);
  problem.stat_bytes = 0;  // lse aside
  const double a = unit(problem);
  const Volume ring = formula_volume(parse_grid("ring", 16), Pass::forward, 3, problem);
  const Volume star = formula_volume(parse_grid("startrail:2", 16), Pass::forward, 3, problem);
  const Volume team = formula_volume(parse_grid("team=4", 16), Pass::forward, 3, problem);
  EXPECT_EQ(static_cast<double>(ring[Traffic::p2p]), 30 * a);
  EXPECT_EQ(ring.total(), ring[Traffic::p2p]);
  EXPECT_EQ(static_cast<double>(star[Traffic::p2p]), 12 * a);  // the paper's 60% less
  EXPECT_EQ(static_cast<double>(star[Traffic::gather]), 3 * a);
  EXPECT_EQ(static_cast<double>(star[Traffic::merge]), 1 * a);
  EXPECT_EQ(static_cast<double>(star.total()), 16 * a);
  EXPECT_EQ(static_cast<double>(team.total()), 12 * a);
}

TEST(Volume, BackwardTotalsOfSixteenRanks) {
  const Problem problem = even_problem(16);
  const Grid star = parse_grid("startrail:2", 16), ring = parse_grid("ring", 16);
  EXPECT_DOUBLE_EQ(total(star, Pass::backward_queries, problem), 25 + 14.0 / 64);
  EXPECT_DOUBLE_EQ(total(star, Pass::backward_keys, problem), 31 + 2.0 / 64);
  EXPECT_DOUBLE_EQ(total(ring, Pass::backward_keys, problem), 60);
}

TEST(Volume, GroupedQueriesMoveTheBestTeam) {
  Problem problem = make_problem(64, 8, 1, 6400, 6400);
  problem.stat_bytes = 0;
  EXPECT_DOUBLE_EQ(total(parse_grid("ring", 64), Pass::forward, problem), 15.75);
  EXPECT_DOUBLE_EQ(total(parse_grid("startrail:2", 64), Pass::forward, problem), 9.75);
  EXPECT_DOUBLE_EQ(total(parse_grid("startrail:4", 64), Pass::forward, problem), 9.75);
  EXPECT_DOUBLE_EQ(total(parse_grid("startrail:8", 64), Pass::forward, problem), 15.75);
}

TEST(Volume, PartialsCountInTheirOwnType) {
  Problem problem = even_problem(16);
  problem.stat_bytes = 0;
  problem.element_bytes = 2;
  const Grid grid = parse_grid("startrail:4", 16);
  const int64_t narrow = formula_volume(grid, Pass::forward, 0, problem)[Traffic::gather];
  EXPECT_EQ(formula_volume(grid, Pass::forward, 0, problem)[Traffic::merge] * 3, narrow * 2);  // 3 x 4 against 9 x 2
  problem.partial_bytes = 2;
  EXPECT_EQ(formula_volume(grid, Pass::forward, 0, problem)[Traffic::merge] * 3, narrow);
}

TEST(Volume, CheaperBackwardFollowsTheRule) {
  for (int key_heads : {16, 8, 2, 1})
    for (const Grid& grid : every_grid(16)) {
      const Problem problem = even_problem(16, key_heads);
      const double keys = 4 * grid.stripe / sharing(grid, problem), queries = grid.team * (3 + 2.0 / 64);
      // Without a ring nothing rides, and both are the same.
      const Pass expected = grid.ring == 1 || keys < queries ? Pass::backward_keys : Pass::backward_queries;
      EXPECT_EQ(cheaper_backward(grid, problem), expected) << to_text(grid) << ", " << key_heads << " key heads";
    }
}

TEST(Volume, CheaperBackwardSendsLessInAllForUnequalLengthsToo) {
  for (const auto& [tokens, key_tokens] : {std::pair{100, 100}, {37, 205}, {205, 37}, {5, 3}})
    for (int element : {2, 4})
      for (const Grid& grid : every_grid(12)) {
        Problem problem = make_problem(12, 24, 12, tokens, key_tokens);
        problem.element_bytes = element;
        int64_t keys = 0, queries = 0;
        for (int rank = 0; rank < 12; ++rank) {
          keys += formula_volume(grid, Pass::backward_keys, rank, problem).total();
          queries += formula_volume(grid, Pass::backward_queries, rank, problem).total();
        }
        EXPECT_EQ(cheaper_backward(grid, problem), queries < keys ? Pass::backward_queries : Pass::backward_keys)
            << to_text(grid) << ", " << tokens << " and " << key_tokens << " tokens";
      }
}

TEST(Volume, EveryMessageHasAPeerAndBytes) {
  const Problem problem = make_problem(8, 8, 8, 5, 3);  // most ranks have nothing to send
  for (const Grid& grid : every_grid(8))
    for (Pass pass : kPasses) {
      const Plan plan = make_plan(grid, pass);
      for (int rank = 0; rank < 8; ++rank) {
        Volume sum;
        each_message(plan, rank, problem, [&](size_t step, const Message& message, int64_t bytes) {
          EXPECT_LT(step, plan.ranks[rank].size());
          EXPECT_GT(bytes, 0);
          EXPECT_NE(message.peer, rank);
          sum[message.kind] += bytes;
        });
        EXPECT_EQ(sum, count_volume(plan, rank, problem)) << to_text(grid) << ", " << to_text(pass);
      }
    }
}

TEST(Volume, CrossingBytesLeaveTheNode) {
  const Problem problem = even_problem(4);
  const int64_t a = static_cast<int64_t>(unit(problem));
  const Cluster two_nodes = make_cluster(4, 2);
  // A ring of 0 1 | 2 3: only 1 and 3 send to the other node, three times a key and a value block.
  const Plan ring = make_plan(parse_grid("ring", 4), Pass::forward);
  const int64_t ring_bytes[] = {0, 6 * a, 0, 6 * a};
  // Teams 0 1 | 2 3 stay inside their node; each rank gathers keys and values with its twin in the other one.
  const Plan star = make_plan(parse_grid("startrail:2", 4), Pass::forward);
  for (int rank = 0; rank < 4; ++rank) {
    EXPECT_EQ(count_crossing(ring, rank, problem, two_nodes), ring_bytes[rank]);
    EXPECT_EQ(count_crossing(star, rank, problem, two_nodes), 2 * a);
    EXPECT_EQ(count_crossing(ring, rank, problem, make_cluster(4, 4)), 0);
    EXPECT_EQ(count_crossing(ring, rank, problem, make_cluster(4, 1)), count_volume(ring, rank, problem).total());
  }
}

TEST(Volume, FewKeyHeadsAreCopied) {
  EXPECT_EQ(key_heads_of_slice(8, 1), 8);
  EXPECT_EQ(key_heads_of_slice(8, 4), 2);
  EXPECT_EQ(key_heads_of_slice(4, 4), 1);
  EXPECT_EQ(key_heads_of_slice(2, 4), 1);
}

TEST(Traffic, HasNames) {
  std::string names;
  for (Traffic kind : kTraffic) names += to_text(kind) + " ";
  EXPECT_EQ(names, "p2p gather merge all_to_all ");
}

}  // namespace
}  // namespace startrail

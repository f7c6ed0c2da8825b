#include "startrail/plan/memory.h"

#include <gtest/gtest.h>

#include "startrail/base/error.h"
#include "startrail/plan/make.h"
#include "startrail/plan/text.h"

namespace startrail {
namespace {

constexpr double kDim = 64;

// 16 heads, 10 tokens a rank.
Problem make_problem(int ranks, int key_heads, int element_bytes, int partial_bytes = 4) {
  Problem problem;
  problem.batch = 2;
  problem.heads = 16;
  problem.key_heads = key_heads;
  problem.element_bytes = element_bytes;
  problem.partial_bytes = partial_bytes;
  problem.queries = problem.keys = make_chunks({Order::contiguous, 10 * ranks, ranks});
  return problem;
}

// In elements of one rank's queries, A of docs/algorithm.md, times their bytes.
double peak(const Grid& grid, Pass pass, const Problem& problem, const Scratch& scratch = {}) {
  const double unit = static_cast<double>(problem.batch * 10 * problem.heads * problem.dim);
  return static_cast<double>(peak_bytes(make_plan(grid, pass), 0, problem, scratch)) / unit;
}

TEST(PeakBytes, OfOneRankIsWhatItHoldsWhenItAttends) {
  Problem problem;
  problem.heads = 4;
  problem.key_heads = 2;
  problem.dim = 8;
  problem.element_bytes = 2;
  problem.queries = problem.keys = make_chunks({Order::contiguous, 10, 1});
  const int q = 10 * 4 * 8 * 2, kv = 2 * 10 * 2 * 8 * 2, stat = 10 * 4 * 4;
  EXPECT_EQ(peak_bytes(Grid{}, Pass::forward, problem), q + kv + 2 * q + stat);
  for (Pass pass : {Pass::backward_keys, Pass::backward_queries})
    EXPECT_EQ(peak_bytes(Grid{}, pass, problem), (q + kv + q + stat) + (2 * q + 2 * stat) + 2 * q + 2 * kv);
}

// The closed formulas of docs/algorithm.md for rings of 4 and more: while a tile in the middle of the ring is attended,
// and in a forward while the team's outputs are merged. e and s are bytes of elements and of accumulators.
struct Terms {
  double forward, merge, keys, queries;
};
Terms closed_terms(const Grid& grid, const Problem& problem) {
  const double a = grid.team, b = grid.stripe, kv = 2.0 * problem.key_heads / problem.heads;
  const double e = problem.element_bytes, s = problem.stat_bytes, row = s / kDim;
  const double saved = e * (2 + kv) + row, query = 2 * e + 2 * row;
  return {e * ((a > 1 ? a + 1 : 1) + kv * (1 + 3 * b)) + (s + row) * a, e * (1 + kv * (1 + b)) + (s + row) * 2 * a,
          saved + query * a + e * kv * 3 * b + s * (a + kv * 5 * b),
          saved + query * 3 * a + e * kv * (b > 1 ? b : 0) + s * (5 * a + kv * b)};
}

TEST(PeakBytes, OfForwardsAreTheClosedFormula) {
  for (int ranks : {4, 7, 16, 24, 36})
    for (const Grid& grid : every_grid(ranks))
      for (int key_heads : {16, 4, 1})
        for (int element_bytes : {4, 2}) {
          if (grid.heads > 1 || grid.ring < 4) continue;
          const Problem problem = make_problem(ranks, key_heads, element_bytes);
          const Terms terms = closed_terms(grid, problem);
          EXPECT_DOUBLE_EQ(peak(grid, Pass::forward, problem),
                           grid.team > 1 ? std::max(terms.forward, terms.merge) : terms.forward)
              << to_text(grid) << ", " << key_heads << " key heads, " << element_bytes << " bytes";
        }
}

TEST(PeakBytes, OfBackwardsAreTheClosedFormula) {
  for (const auto& [name, ranks] :
       {std::pair{"ring", 4}, {"ring", 7}, {"ring", 16}, {"startrail:2", 16}, {"startrail:2", 32}, {"startrail:4", 64}})
    for (int key_heads : {16, 4, 2})
      for (int element_bytes : {4, 2}) {
        const Grid grid = parse_grid(name, ranks);
        const Problem problem = make_problem(ranks, key_heads, element_bytes);
        const Terms terms = closed_terms(grid, problem);
        EXPECT_DOUBLE_EQ(peak(grid, Pass::backward_keys, problem), terms.keys)
            << name << " " << ranks << " " << key_heads;
        EXPECT_DOUBLE_EQ(peak(grid, Pass::backward_queries, problem), terms.queries)
            << name << " " << ranks << " " << key_heads;
      }
}

TEST(PeakBytes, OfAMergeIsTheWholeItsMessagesAndTheResult) {
  const Problem problem = make_problem(16, 16, 2);
  const double saved = 2 * 4 + 4 / kDim, dq = 4, dkv = 2 * 4;
  // All-gather: the gradients of all keys, those of the own chunk from everyone, and their sum.
  EXPECT_DOUBLE_EQ(peak({.stripe = 16}, Pass::backward_keys, problem), saved + dq + dkv * (16 + 15 + 1));
  // With a team, as the gradients of the queries are summed, those of the keys are on their way.
  EXPECT_DOUBLE_EQ(peak({.team = 2, .stripe = 8}, Pass::backward_keys, problem),
                   saved + dq * (2 + 1 + 1) + dkv * (8 + 7));
}

TEST(PeakBytes, OfAnAllToAllCountsWhatIsOnItsWay) {
  const double u = 4, sent = (u - 1) / u;
  // Ulysses: as the keys are traded there are the own k and v, q in its slice and what of it is still being sent, and
  // the same of k and v.
  EXPECT_DOUBLE_EQ(peak({.heads = 4}, Pass::forward, make_problem(4, 16, 4)), 4 * (2 + (1 + sent) + 2 * (1 + sent)));
  // In bfloat16 it is as out is traded back that most is held: q, k, v, out and lse, what is sent of it, the others'
  // parts, and the result.
  EXPECT_DOUBLE_EQ(peak({.heads = 4}, Pass::forward, make_problem(4, 16, 2)),
                   2 * 3 + 4 * (1 + 1 / kDim) + 2 * (2 * sent + 1));
  // And with one key/value head: in float32 out is sent as it lies, but k and v are copied for everyone.
  EXPECT_DOUBLE_EQ(peak({.heads = 4}, Pass::forward, make_problem(4, 1, 4)),
                   4 * (1 + u * 2 / 16 + (1 + 1 / kDim) + sent + 1));
}

TEST(PeakBytes, IsLessWithNarrowMessages) {
  // Arriving and sent gradients are of two bytes, but adding one that arrived takes a wide copy.
  const Grid ring{.ring = 8};
  const double wide = peak(ring, Pass::backward_keys, make_problem(8, 16, 2, 4));
  EXPECT_DOUBLE_EQ(peak(ring, Pass::backward_keys, make_problem(8, 16, 2, 2)), wide - 2 * 2);
}

TEST(PeakBytes, CountsScratchWhereItFalls) {
  const Problem problem = make_problem(8, 16, 2);
  const Scratch some = [](int64_t, int64_t) { return int64_t{2 * 10 * 16 * 64}; };
  EXPECT_DOUBLE_EQ(peak({.ring = 8}, Pass::backward_keys, problem, some),
                   peak({.ring = 8}, Pass::backward_keys, problem) + 1);
  // A merge that holds more than the attend before it hides it.
  EXPECT_EQ(peak({.stripe = 8}, Pass::backward_keys, problem, some), peak({.stripe = 8}, Pass::backward_keys, problem));
}

TEST(PeakBytes, OfAGridIsThatOfItsLargestRank) {
  for (int ranks : {1, 6, 8, 12})
    for (const Grid& grid : every_grid(ranks))
      for (Pass pass : kPasses)
        for (int64_t tokens : {10 * ranks, 10 * ranks + 5, 1}) {
          Problem problem = make_problem(ranks, 16, 2);
          problem.heads = problem.key_heads = 24;
          problem.queries = problem.keys = make_chunks({Order::zigzag, tokens, ranks});
          const Plan plan = make_plan(grid, pass);
          int64_t most = 0;
          for (int rank = 0; rank < ranks; ++rank) most = std::max(most, peak_bytes(plan, rank, problem));
          const int64_t stated = peak_bytes(grid, pass, problem);
          EXPECT_GE(stated, most) << to_text(grid) << ", " << to_text(pass) << ", " << tokens;
          if (tokens == 10 * ranks) {
            EXPECT_EQ(stated, most) << to_text(grid) << ", " << to_text(pass);
          }
          if (tokens > 1) {
            EXPECT_LE(stated, most * 1.2) << to_text(grid) << ", " << to_text(pass);
          }
        }
}

TEST(PeakBytes, IsOfPlansThatHoldWhatTheyRead) {
  Plan plan = make_plan({.ring = 2}, Pass::forward);
  plan.ranks[0].erase(plan.ranks[0].begin());
  EXPECT_THROW(peak_bytes(plan, 0, make_problem(2, 16, 4)), UserError);
}

}  // namespace
}  // namespace startrail

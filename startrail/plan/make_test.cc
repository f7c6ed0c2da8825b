#include "startrail/plan/make.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "startrail/base/error.h"
#include "startrail/plan/check.h"
#include "startrail/plan/text.h"

namespace startrail {
namespace {

std::string name(const Grid& grid, Pass pass) { return to_text(grid) + ", " + to_text(pass); }

// Calls `visit` for every grid of 1 to `most` ranks and every pass.
template <class Visit>
void each_plan(int most, const Visit& visit) {
  for (int ranks = 1; ranks <= most; ++ranks)
    for (const Grid& grid : every_grid(ranks))
      for (Pass pass : kPasses) visit(grid, pass);
}

int count(const Steps& steps, Op op) {
  return static_cast<int>(std::count_if(steps.begin(), steps.end(), [&](const Step& step) { return step.op == op; }));
}

int count_hops(const Steps& steps, Data data) {
  return static_cast<int>(std::count_if(steps.begin(), steps.end(), [&](const Step& step) {
    return sends(step) && receives(step) && step.in.data == data && step.out.data == data;
  }));
}

// Pairs that each rank attends, of causal tokens in zigzag chunks.
std::vector<int64_t> causal_work(const Grid& grid, Pass pass, int64_t tokens) {
  const int ranks = grid.ranks();
  const Layout layout{Order::zigzag, tokens, ranks};
  const Problem problem = make_problem({}, layout, layout);
  std::vector<int64_t> work;
  for (int rank = 0; rank < ranks; ++rank)
    work.push_back(rank_work(make_steps(grid, pass, rank), problem, {.causal = true}));
  return work;
}

// How far the rank furthest from the mean is from it, as a share of it.
double unevenness(const std::vector<int64_t>& work) {
  double sum = 0, furthest = 0;
  for (int64_t pairs : work) sum += static_cast<double>(pairs);
  const double mean = sum / static_cast<double>(work.size());
  for (int64_t pairs : work) furthest = std::max(furthest, std::abs(static_cast<double>(pairs) - mean) / mean);
  return furthest;
}

TEST(GridPlan, PassesTheCheck) {
  int plans = 0;
  each_plan(24, [&](const Grid& grid, Pass pass) {
    ASSERT_NO_THROW(check_plan(make_plan(grid, pass))) << name(grid, pass);
    ++plans;
  });
  EXPECT_EQ(plans, 1224);  // three passes of 408 grids
}

TEST(GridPlan, PassesTheCheckInEveryAxisOrder) {
  for (Grid grid : {Grid{1, 2, 4, 2}, Grid{2, 2, 3, 1}, Grid{2, 2, 2, 2}, Grid{3, 1, 2, 2}}) do
      for (Pass pass : kPasses) ASSERT_NO_THROW(check_plan(make_plan(grid, pass))) << name(grid, pass);
    while (std::next_permutation(grid.order.begin(), grid.order.end()));
}

// The heart of correctness, counted without check.cc: over all ranks, every query chunk meets every key chunk exactly
// once in each slice of the heads.
TEST(GridPlan, AttendsEveryPairOnce) {
  each_plan(24, [](const Grid& grid, Pass pass) {
    const int ranks = grid.ranks();
    std::vector<int> attended(ranks * ranks * grid.heads);
    for (int rank = 0; rank < ranks; ++rank)
      for (const Step& step : make_steps(grid, pass, rank)) {
        if (step.op != Op::attend) continue;
        ASSERT_EQ(step.in.slice, step.with.slice);
        for (int q : step.in.chunks)
          for (int k : step.with.chunks) ++attended[(q * ranks + k) * grid.heads + std::max(step.in.slice, 0)];
      }
    ASSERT_EQ(attended, std::vector<int>(attended.size(), 1)) << name(grid, pass);
  });
}

TEST(GridPlan, TakesAsFewStepsAsTheGridNeeds) {
  each_plan(16, [](const Grid& grid, Pass pass) {
    const bool forward = pass == Pass::forward;
    const int team = grid.team > 1, stripe = grid.stripe > 1;  // whether there is anything to share
    for (int rank = 0; rank < grid.ranks(); ++rank) {
      const Steps steps = make_steps(grid, pass, rank);
      ASSERT_EQ(count(steps, Op::attend), grid.ring) << name(grid, pass);
      ASSERT_EQ(count(steps, Op::gather), team + stripe) << name(grid, pass);
      ASSERT_EQ(count(steps, Op::merge), forward ? team : team + stripe) << name(grid, pass);
      ASSERT_EQ(count(steps, Op::all_to_all), grid.heads > 1 ? 3 : 0) << name(grid, pass);
      ASSERT_EQ(count(steps, Op::delta), forward ? 0 : 1) << name(grid, pass);
      ASSERT_EQ(count(steps, Op::exchange), (grid.ring - 1) * (forward ? 1 : 2)) << name(grid, pass);
    }
  });
}

TEST(GridPlan, RidesAndGradientsHopWithoutAReturn) {
  each_plan(16, [](const Grid& grid, Pass pass) {
    std::map<Data, int> hops;
    const bool keys_ride = pass != Pass::backward_queries;
    hops[keys_ride ? Data::keys : Data::query] = grid.ring - 1;
    if (pass != Pass::forward) hops[keys_ride ? Data::keys_grad : Data::query_grad] = grid.ring - 1;
    for (int rank = 0; rank < grid.ranks(); ++rank) {
      const Steps steps = make_steps(grid, pass, rank);
      for (Data data : {Data::query, Data::keys, Data::out, Data::query_grad, Data::keys_grad})
        ASSERT_EQ(count_hops(steps, data), hops[data]) << name(grid, pass) << ", " << to_text(data);
    }
  });
}

TEST(GridPlan, StarTrailIsThePapersFigure) {
  const Plan plan = make_plan(parse_grid("startrail:2", 16), Pass::forward);
  std::string text;
  for (const Step& step : plan.ranks[0]) text += to_text(step) + "\n";
  EXPECT_EQ(text, R"(gather query 0 -> query 0,1 over 0:0 1:1
gather keys 0 -> keys 0,8 over 0:0 8:8
exchange keys 0,8 to 2 and keys 6,14 from 6
attend query 0,1 x keys 0,8
exchange keys 6,14 to 2 and keys 4,12 from 6
attend query 0,1 x keys 6,14
exchange keys 4,12 to 2 and keys 2,10 from 6
attend query 0,1 x keys 4,12
attend query 0,1 x keys 2,10
merge out 0,1 -> out 0 over 0:0 1:1
)");
}

TEST(GridPlan, GradientsFollowOneStepBehind) {
  const Plan plan = make_plan({.heads = 2, .ring = 3}, Pass::backward_keys);
  std::string text;
  for (const Step& step : plan.ranks[3]) text += to_text(step) + "\n";
  EXPECT_EQ(text, R"(all_to_all out_grad 3 -> out_grad 2,3 /1 over 2:2 3:3
delta out_grad 2,3 /1 with saved 2,3 /1 -> query 2,3 /1
exchange keys 2,3 /1 to 5 and keys 0,1 /1 from 1
attend query 2,3 /1 x keys 2,3 /1
exchange keys 0,1 /1 to 5 and keys 4,5 /1 from 1
attend query 2,3 /1 x keys 0,1 /1
exchange keys_grad 0,1 /1 to 5 and keys_grad 4,5 /1 from 1
attend query 2,3 /1 x keys 4,5 /1
exchange keys_grad 4,5 /1 to 5 and keys_grad 2,3 /1 from 1
all_to_all query_grad 2,3 /1 -> query_grad 3 over 2:2 3:3
all_to_all keys_grad 2,3 /1 -> keys_grad 3 over 2:2 3:3
)");
}

TEST(GridPlan, RefusesARankOutsideTheGrid) {
  EXPECT_THROW(make_steps({.ring = 4}, Pass::forward, 4), InternalError);
  EXPECT_THROW(make_steps({.ring = 4}, Pass::forward, -1), InternalError);
}

TEST(ZigzagWork, IsEqualWhenPiecesAre) {
  for (int ranks : {8, 16})
    for (const Grid& grid : every_grid(ranks))
      for (Pass pass : kPasses)
        for (int64_t tokens : {2 * ranks, 64 * ranks, 130 * ranks}) {
          const std::vector<int64_t> work = causal_work(grid, pass, tokens);
          ASSERT_EQ(work, std::vector<int64_t>(ranks, work[0])) << name(grid, pass) << ", " << tokens << " tokens";
        }
}

TEST(ZigzagWork, IsWithinTwoPercentOfTheMeanFrom64TokensARank) {
  double worst = 0;
  for (int ranks : {8, 12, 16})
    for (const Grid& grid : every_grid(ranks))
      for (int more = 0; more < 2 * ranks; more += ranks == 8 ? 1 : 5)
        for (Pass pass : {Pass::forward, Pass::backward_queries}) {  // the other backward attends the forward's pairs
          const double uneven = unevenness(causal_work(grid, pass, 64 * ranks + more));
          worst = std::max(worst, uneven);
          ASSERT_LE(uneven, 0.02) << name(grid, pass) << ", " << 64 * ranks + more << " tokens";
        }
  EXPECT_GT(worst, 0.01);  // the case that is hard was among them
}

}  // namespace
}  // namespace startrail

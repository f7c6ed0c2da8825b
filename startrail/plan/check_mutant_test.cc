// Can the check fail? Good plans with one thing changed must all be refused.
#include <gtest/gtest.h>

#include <functional>
#include <set>

#include "startrail/base/testing.h"
#include "startrail/plan/check.h"
#include "startrail/plan/make.h"
#include "startrail/plan/text.h"

namespace startrail {
namespace {

constexpr Pass kPasses[] = {Pass::forward, Pass::backward_keys, Pass::backward_queries};

std::vector<Grid> some_grids() {
  std::vector<Grid> grids = {
      {}, {.ring = 2}, {.ring = 5}, {.heads = 3}, {.team = 3}, {.stripe = 3}, {.team = 2, .stripe = 2}};
  for (const Grid& grid : {Grid{1, 2, 2, 2}, Grid{2, 1, 3, 1}, Grid{2, 2, 2, 1}, Grid{2, 2, 1, 2}, Grid{1, 2, 3, 2}})
    grids.push_back(grid);
  grids.push_back({2, 2, 2, 2, {Axis::stripe, Axis::ring, Axis::heads, Axis::team}});
  return grids;
}

// Calls `visit` for every step of every plan: with the plan to change, and the rank and index of the step.
void each_step(const std::function<void(const Plan&, size_t rank, size_t index)>& visit) {
  for (const Grid& grid : some_grids())
    for (Pass pass : kPasses) {
      const Plan plan = make_plan(grid, pass);
      for (size_t rank = 0; rank < plan.ranks.size(); ++rank)
        for (size_t i = 0; i < plan.ranks[rank].size(); ++i) visit(plan, rank, i);
    }
}

bool refused(const Plan& plan) {
  return error_of([&] { check_plan(plan); }).starts_with("plan is wrong");
}

// Changes one step of every plan in all the ways of `changes`; one that leaves it as it is does not count.
void expect_changes_wrong(const std::function<std::vector<Step>(const Step&, const Plan&)>& changes) {
  int mutants = 0;
  each_step([&](const Plan& plan, size_t rank, size_t i) {
    const Step& step = plan.ranks[rank][i];
    for (const Step& changed : changes(step, plan)) {
      if (changed == step) continue;
      Plan mutant = plan;
      mutant.ranks[rank][i] = changed;
      ASSERT_TRUE(refused(mutant)) << to_text(changed) << "\nas step " << i << " of rank " << rank << " of\n"
                                   << to_text(plan);
      ++mutants;
    }
  });
  EXPECT_GT(mutants, 100);
}

// The blocks of a step, each changed by `change`.
std::vector<Step> with_blocks(const Step& step, const std::function<void(Block&)>& change) {
  std::vector<Step> steps;
  for (Block Step::*block : {&Step::in, &Step::out}) {
    steps.push_back(step);
    change(steps.back().*block);
  }
  return steps;
}

TEST(Mutant, WithoutAStepIsRefused) {
  each_step([](const Plan& plan, size_t rank, size_t i) {
    Plan mutant = plan;
    mutant.ranks[rank].erase(mutant.ranks[rank].begin() + i);
    ASSERT_TRUE(refused(mutant)) << "without step " << i << " of rank " << rank << " of\n" << to_text(plan);
  });
}

TEST(Mutant, WithAStepTwiceIsRefused) {
  each_step([](const Plan& plan, size_t rank, size_t i) {
    Plan mutant = plan;
    Steps& steps = mutant.ranks[rank];
    steps.insert(steps.begin() + i, Step(steps[i]));
    ASSERT_TRUE(refused(mutant)) << "with step " << i << " of rank " << rank << " twice of\n" << to_text(plan);
  });
}

TEST(Mutant, WithAnotherPeerIsRefused) {
  expect_changes_wrong([](const Step& step, const Plan& plan) {
    std::vector<Step> steps;
    for (int peer = 0; step.op == Op::exchange && peer <= static_cast<int>(plan.ranks.size()); ++peer)
      for (int Step::*end : {&Step::to, &Step::from}) {
        steps.push_back(step);
        steps.back().*end = peer;
      }
    return steps;
  });
}

TEST(Mutant, WithHalfAnExchangeIsRefused) {
  expect_changes_wrong([](const Step& step, const Plan&) {
    Step send = step, receive = step;
    send.from = receive.to = -1;
    return std::vector<Step>{send, receive};
  });
}

TEST(Mutant, WithAnotherChunkIsRefused) {
  expect_changes_wrong([](const Step& step, const Plan& plan) {
    const int ranks = static_cast<int>(plan.ranks.size());
    std::vector<Step> steps;
    for (int shift : {1, ranks - 1})
      for (const Step& changed :
           with_blocks(step, [&](Block& block) { block.chunks[0] = (block.chunks[0] + shift) % ranks; }))
        steps.push_back(changed);
    return steps;
  });
}

TEST(Mutant, WithAChunkLessIsRefused) {
  expect_changes_wrong(
      [](const Step& step, const Plan&) { return with_blocks(step, [](Block& block) { block.chunks.pop_back(); }); });
}

TEST(Mutant, WithChunksInAnotherOrderIsRefused) {
  expect_changes_wrong([](const Step& step, const Plan&) {
    return with_blocks(step, [](Block& block) { std::swap(block.chunks.front(), block.chunks.back()); });
  });
}

TEST(Mutant, WithAnotherSliceIsRefused) {
  expect_changes_wrong([](const Step& step, const Plan& plan) {
    std::vector<Step> steps;
    for (int slice = kAllHeads; slice <= plan.slices; ++slice)
      for (const Step& changed : with_blocks(step, [&](Block& block) { block.slice = slice; }))
        steps.push_back(changed);
    return steps;
  });
}

TEST(Mutant, WithOtherDataIsRefused) {
  expect_changes_wrong([](const Step& step, const Plan&) {
    std::vector<Step> steps;
    for (Data data : {Data::query, Data::keys, Data::out, Data::out_grad, Data::query_grad, Data::keys_grad})
      for (const Step& changed : with_blocks(step, [&](Block& block) { block.data = data; })) steps.push_back(changed);
    return steps;
  });
}

TEST(Mutant, WithAnotherGroupIsRefused) {
  expect_changes_wrong([](const Step& step, const Plan&) {
    std::vector<Step> steps;
    if (step.group.empty()) return steps;
    for (int change = 0; change < 4; ++change) steps.push_back(step);
    std::swap(steps[0].group.front(), steps[0].group.back());
    std::swap(steps[1].group[steps[1].group.size() / 2], steps[1].group.back());
    steps[2].group.pop_back();
    steps[3].group.back() = steps[3].group.front();
    return steps;
  });
}

TEST(Mutant, OfAnotherPassOrSlicesIsRefused) {
  for (const Grid& grid : some_grids())
    for (Pass pass : kPasses) {
      Plan mutant = make_plan(grid, pass);
      mutant.pass = pass == Pass::forward ? Pass::backward_keys : Pass::forward;
      EXPECT_TRUE(refused(mutant)) << to_text(grid) << ", " << to_text(pass);
      if (grid.heads == 1) continue;  // such a plan attends all heads at once, however many slices they have
      for (int slices : {grid.heads - 1, grid.heads + 1}) {
        mutant = make_plan(grid, pass);
        mutant.slices = slices;
        EXPECT_TRUE(refused(mutant)) << to_text(grid) << ", " << to_text(pass) << ", " << slices << " slices";
      }
    }
}

std::set<Block> reads(const Step& step) {
  if (step.op == Op::attend) return {step.in, step.out};
  if (step.op == Op::exchange && !sends(step)) return {};
  return {step.in};
}

std::set<Block> writes(const Step& step, Pass pass) {
  if (step.op == Op::attend && pass == Pass::forward) return {out_of(step)};
  if (step.op == Op::attend) return {query_grad_of(step), keys_grad_of(step)};
  if (step.op == Op::exchange && !receives(step)) return {};
  return {step.out};
}

// Two neighbouring steps of one rank may change places unless the second reads what the first writes.
TEST(Mutant, WithNeighboursSwappedIsRefusedWhenTheyDepend) {
  int refused = 0, accepted = 0;
  each_step([&](const Plan& plan, size_t rank, size_t i) {
    if (i + 1 == plan.ranks[rank].size()) return;
    Plan mutant = plan;
    std::swap(mutant.ranks[rank][i], mutant.ranks[rank][i + 1]);
    const Step &first = plan.ranks[rank][i], &second = plan.ranks[rank][i + 1];
    bool depends = false;
    for (const Block& block : reads(second)) depends |= writes(first, plan.pass).contains(block);
    const std::string error = error_of([&] { check_plan(mutant); });
    ASSERT_EQ(error != "no error", depends) << to_text(first) << "\n" << to_text(second) << "\n" << error;
    ++(depends ? refused : accepted);
  });
  EXPECT_GT(refused, 100);
  EXPECT_GT(accepted, 100);
}

}  // namespace
}  // namespace startrail

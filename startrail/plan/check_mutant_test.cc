// Can the check fail? Good plans with one thing changed must all be refused.
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <set>

#include "startrail/base/testing.h"
#include "startrail/plan/check.h"
#include "startrail/plan/make.h"
#include "startrail/plan/text.h"

namespace startrail {
namespace {

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
  for (Block Step::*block : {&Step::in, &Step::with, &Step::out}) {
    if ((step.*block).chunks.empty()) continue;
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
  expect_changes_wrong([](const Step& step, const Plan&) -> std::vector<Step> {
    if (step.op == Op::attend) return {};  // may name the chunks of what is held in any order
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
    for (Data data : kData)
      for (const Step& changed : with_blocks(step, [&](Block& block) { block.data = data; })) steps.push_back(changed);
    return steps;
  });
}

TEST(Mutant, WithAnotherGroupIsRefused) {
  expect_changes_wrong([](const Step& step, const Plan&) {
    std::vector<Step> steps;
    if (step.group.empty()) return steps;
    for (int change = 0; change < 6; ++change) steps.push_back(step);
    std::swap(steps[0].group.front(), steps[0].group.back());
    std::swap(steps[1].group[steps[1].group.size() / 2], steps[1].group.back());
    steps[2].group.pop_back();
    steps[3].group.back() = steps[3].group.front();
    std::swap(steps[4].group.front().rank, steps[4].group.back().rank);
    std::swap(steps[5].group.front().chunks, steps[5].group.back().chunks);
    return steps;
  });
}

TEST(Mutant, OfAnotherPassOrSlicesIsRefused) {
  for (const Grid& grid : some_grids())
    for (Pass pass : kPasses) {
      Plan mutant = make_plan(grid, pass);
      mutant.pass = pass == Pass::forward ? Pass::backward_keys : Pass::forward;
      EXPECT_TRUE(refused(mutant)) << to_text(grid) << ", " << to_text(pass);
      for (int slices : {grid.heads - 1, grid.heads + 1}) {
        mutant = make_plan(grid, pass);
        mutant.slices = slices;
        EXPECT_TRUE(refused(mutant)) << to_text(grid) << ", " << to_text(pass) << ", " << slices << " slices";
      }
    }
}

// The rules once more, naively and apart from play.cc: which blocks a step reads and writes, and whom it talks to.
std::set<Block> reads(const Step& step) {
  if (step.op == Op::attend || step.op == Op::delta) return {step.in, step.with};
  if (step.op == Op::exchange && !sends(step)) return {};
  return {step.in};
}

std::set<Block> writes(const Step& step, Pass pass) {
  const auto result = [](Data data, const Block& of) { return Block{data, of.chunks, of.slice}; };
  if (step.op == Op::attend && pass == Pass::forward) return {result(Data::out, step.in)};
  if (step.op == Op::attend) return {result(Data::query_grad, step.in), result(Data::keys_grad, step.with)};
  if (step.op == Op::exchange && !receives(step)) return {};
  return {step.out};
}

struct Message {
  int peer;
  bool sends;
  std::string what;
  bool met = false;
};
std::vector<Message> messages(const Step& step, int rank) {
  std::vector<Message> all;
  const std::string what = to_text(step.op) + to_text(sends(step) || !receives(step) ? step.in.data : step.out.data);
  if (sends(step)) all.push_back({step.to, true, what});
  if (receives(step)) all.push_back({step.from, false, what});
  for (const Member& member : step.group) {
    if (member.rank == rank) continue;
    all.push_back({member.rank, true, what});
    all.push_back({member.rank, false, what});
  }
  return all;
}

// Whether every rank comes to its end when messages have no tags, a step's are one group, and a group must be done
// before the next begins: tried by going round until nothing moves.
bool runs_without_tags(const Plan& plan) {
  std::vector<std::vector<std::vector<Message>>> queues;
  for (size_t rank = 0; rank < plan.ranks.size(); ++rank) {
    queues.emplace_back();
    for (const Step& step : plan.ranks[rank])
      if (auto group = messages(step, static_cast<int>(rank)); !group.empty()) queues.back().push_back(group);
  }
  for (bool moved = true; moved;) {
    moved = false;
    for (size_t rank = 0; rank < queues.size(); ++rank) {
      if (queues[rank].empty()) continue;
      bool done = true;
      for (Message& mine : queues[rank].front()) {
        if (!mine.met && !queues[mine.peer].empty())
          for (Message& theirs : queues[mine.peer].front())
            if (!theirs.met && theirs.peer == static_cast<int>(rank) && theirs.sends != mine.sends) {
              if (mine.what != theirs.what) return false;
              mine.met = theirs.met = moved = true;
              break;
            }
        done &= mine.met;
      }
      if (done) {
        queues[rank].erase(queues[rank].begin());
        moved = true;
      }
    }
  }
  return std::all_of(queues.begin(), queues.end(), [](const auto& queue) { return queue.empty(); });
}

// Two neighbouring steps of one rank may change places unless the second reads what the first writes, or the others
// then wait for ever.
TEST(Mutant, WithNeighboursSwappedIsRefusedWhenTheyDepend) {
  int dependent = 0, disordered = 0, accepted = 0;
  each_step([&](const Plan& plan, size_t rank, size_t i) {
    if (i + 1 == plan.ranks[rank].size()) return;
    Plan mutant = plan;
    std::swap(mutant.ranks[rank][i], mutant.ranks[rank][i + 1]);
    const Step &first = plan.ranks[rank][i], &second = plan.ranks[rank][i + 1];
    bool depends = false;
    for (const Block& block : reads(second)) depends |= writes(first, plan.pass).contains(block);
    const bool runs = runs_without_tags(mutant);
    const std::string error = error_of([&] { check_plan(mutant); });
    ASSERT_EQ(error != "no error", depends || !runs) << to_text(first) << "\n" << to_text(second) << "\n" << error;
    ++(depends ? dependent : runs ? accepted : disordered);
  });
  EXPECT_GT(dependent, 100);
  EXPECT_GT(disordered, 100);
  EXPECT_GT(accepted, 100);
}

// A transport without tags needs a step's messages as one: posted one by one, almost no plan comes to its end.
TEST(Mutant, WithMessagesPostedSinglyIsRefused) {
  int refused = 0, all = 0;
  for (int ranks = 2; ranks <= 12; ++ranks)
    for (const Grid& grid : every_grid(ranks))
      for (Pass pass : kPasses) {
        const std::string error = error_of([&] { check_order(make_plan(grid, pass), Posting::singly); });
        refused += error.find("without tags it waits for ever") != std::string::npos;
        ++all;
      }
  EXPECT_EQ(refused, all);
  EXPECT_EQ(error_of([] { check_order(make_plan({.ring = 2}, Pass::forward), Posting::singly); }),
            "plan is wrong at rank 0, step 0 (exchange keys 0 to 1 and keys 1 from 1): without tags it waits for ever "
            "for rank 1 to receive keys 0");
}

// Both swaps of keys and of queries with a neighbour are right by themselves; but one rank does them the other way
// round.
TEST(Mutant, WithTwoExchangesSwappedHasAnotherOrder) {
  const char* text = R"(plan forward ranks 2 slices 1
rank 0
  exchange keys 0 to 1 and keys 1 from 1
  exchange query 0 to 1
  attend query 0 x keys 1
  exchange out 0 from 1
rank 1
  %s
  attend query 0 x keys 0
  attend query 1 x keys 0
  attend query 1 x keys 1
  exchange out 0 to 0
)";
  const std::string keys = "exchange keys 1 to 0 and keys 0 from 0", query = "exchange query 0 from 0";
  const auto error = [&](const std::string& first, const std::string& second) {
    std::string plan = text;
    plan.replace(plan.find("%s"), 2, first + "\n" + second);
    return error_of([&] { check_plan(plan_from_text(plan)); });
  };
  EXPECT_EQ(error(keys, query), "no error");
  EXPECT_EQ(
      error(query, keys),
      "plan is wrong at rank 0, step 0 (exchange keys 0 to 1 and keys 1 from 1): without tags it would send keys 0 "
      "where rank 1 expects query 0");
}

}  // namespace
}  // namespace startrail

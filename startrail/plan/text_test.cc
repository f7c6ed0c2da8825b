#include "startrail/plan/text.h"

#include <gtest/gtest.h>

#include "startrail/base/testing.h"
#include "startrail/plan/make.h"

namespace startrail {
namespace {

constexpr const char* kTwoRanks = R"(plan forward ranks 2 slices 1
rank 0
  exchange keys 0 to 1 and keys 1 from 1
  attend query 0 x keys 0
  attend query 0 x keys 1
rank 1
  exchange keys 1 to 0 and keys 0 from 0
  attend query 1 x keys 1
  attend query 1 x keys 0
)";

std::string refusal(std::string_view text) {
  return error_of([&] { plan_from_text(text); });
}

// What is wrong with `line` as the first step of a plan: it is line 3.
std::string refused_step(std::string_view line) {
  return refusal(cat("plan forward ranks 1 slices 1\nrank 0\n", line));
}

TEST(PlanText, PrintsOneLineAStep) { EXPECT_EQ(to_text(make_plan({.ring = 2}, Pass::forward)), kTwoRanks); }

TEST(PlanText, ReadsBack) {
  for (int ranks = 1; ranks <= 12; ++ranks)
    for (const Grid& grid : every_grid(ranks))
      for (Pass pass : kPasses) {
        const Plan plan = make_plan(grid, pass);
        ASSERT_EQ(plan_from_text(to_text(plan)), plan) << to_text(grid) << ", " << to_text(pass);
      }
}

TEST(PlanText, ReadsHalfExchanges) {
  const Step send{.op = Op::exchange, .in = {Data::out, {3, 5}, 1}, .to = 2};
  const Step receive{.op = Op::exchange, .out = {Data::query_grad, {7}, kAllHeads}, .from = 4};
  EXPECT_EQ(to_text(send), "exchange out 3,5 /1 to 2");
  EXPECT_EQ(to_text(receive), "exchange query_grad 7 from 4");
  Plan plan{plan_head({.heads = 2}, Pass::backward_keys), {}};
  plan.ranks = {{send, receive}, {}};
  EXPECT_EQ(plan_from_text(to_text(plan)), plan);
}

// What no grid makes: chunks that are not the ranks', and members of a group that bring or own none.
TEST(PlanText, ReadsOwnersAndMembersWithoutChunks) {
  const std::string text = R"(plan forward ranks 2 slices 1 owners 0,0,1
rank 0
  gather keys 0,1 -> keys 0,1,2 over 0:0,1 1:2
  merge out 2 -> out none over 0:none 1:2
rank 1
)";
  const Plan plan = plan_from_text(text);
  EXPECT_EQ(plan.owners, (std::vector{0, 0, 1}));
  EXPECT_EQ(plan.owned_by(0), (std::vector{0, 1}));
  EXPECT_TRUE(plan.ranks[0][1].out.chunks.empty());
  EXPECT_TRUE(plan.ranks[0][1].group[0].chunks.empty());
  EXPECT_EQ(to_text(plan), text);
}

TEST(PlanText, SkipsEmptyLinesAndSpaces) {
  EXPECT_EQ(plan_from_text("\n\n  plan forward  ranks 1 slices 1\n\nrank 0\nattend query 0   x keys 0\n"),
            make_plan({}, Pass::forward));
}

TEST(PlanText, RefusesABadHead) {
  EXPECT_EQ(refusal("rank 0"), "plan text, line 1: 'rank' where 'plan' is expected");
  EXPECT_EQ(refusal("\nplan sideways ranks 1 slices 1"),
            "plan text, line 2: 'sideways' where a pass (forward, backward_keys, backward_queries) is expected");
  EXPECT_EQ(refusal("plan forward ranks two slices 1"), "plan text, line 1: 'two' where a number of ranks is expected");
  EXPECT_EQ(refusal("plan forward ranks 2"), "plan text, line 1: the line ends where 'slices' is expected");
  EXPECT_EQ(refusal("plan forward ranks 2 slices 1 more"),
            "plan text, line 1: 'more' where the end of the line is expected");
  EXPECT_EQ(refusal("plan forward ranks 99999999999 slices 1"),
            "plan text, line 1: '99999999999' where a number of ranks is expected");
}

TEST(PlanText, RefusesRanksOutOfOrder) {
  const std::string head = "plan forward ranks 2 slices 1\n";
  EXPECT_EQ(refusal(head + "attend query 0 x keys 0"), "plan text, line 2: 'attend' where 'rank 0' is expected");
  EXPECT_EQ(refusal(head + "rank 1"), "plan text, line 2: '1' where rank 0 of 2 is expected");
  EXPECT_EQ(refusal(head + "rank 0\nrank 0"), "plan text, line 3: '0' where rank 1 of 2 is expected");
  EXPECT_EQ(refusal(head + "rank 0\nrank 1\nrank 2"),
            "plan text, line 4: '2' where the end of a plan of 2 ranks is expected");
  EXPECT_EQ(refusal(head + "rank 0"), "plan text ends after 1 of 2 ranks");
  EXPECT_EQ(refusal("\n"), "plan text is empty where 'plan <pass> ranks <number> slices <number>' is expected");
}

TEST(PlanText, RefusesBadSteps) {
  const std::string line = "plan text, line 3: ";
  EXPECT_EQ(refused_step("ponder query 0"),
            line + "'ponder' where a step (all_to_all, gather, delta, exchange, attend, merge) is expected");
  EXPECT_EQ(
      refused_step("attend values 0 x keys 0"),
      line + "'values' where a kind of data (query, keys, saved, out, out_grad, query_grad, keys_grad) is expected");
  EXPECT_EQ(refused_step("attend query x keys 0"), line + "'x' where a list of chunks is expected");
  EXPECT_EQ(refused_step("attend query 0,,1 x keys 0"), line + "'0,,1' where a list of chunks is expected");
  EXPECT_EQ(refused_step("attend query 4294967296 x keys 0"), line + "'4294967296' where a list of chunks is expected");
  EXPECT_EQ(refused_step("attend query 0 /a x keys 0"), line + "'/a' where a slice such as /0 is expected");
  EXPECT_EQ(refused_step("attend query 0 -> keys 0"), line + "'->' where 'x' is expected");
  EXPECT_EQ(refused_step("attend query 0 x keys 0 over 0"), line + "'over' where the end of the line is expected");
  EXPECT_EQ(refused_step("gather query 0 x query 0"), line + "'x' where '->' is expected");
  EXPECT_EQ(refused_step("gather query 0 -> query 0"), line + "the line ends where 'over' is expected");
  const std::string member = " where a rank and its chunks such as 0:0,1 is expected";
  EXPECT_EQ(refused_step("gather query 0 -> query 0 over"), line + "the line ends" + member);
  EXPECT_EQ(refused_step("gather query 0 -> query 0 over 0"), line + "'0'" + member);
  EXPECT_EQ(refused_step("gather query 0 -> query 0 over 0:0 1:"), line + "'1:'" + member);
  EXPECT_EQ(refused_step("gather query 0 -> query 0 over 0:0,x"), line + "'0:0,x'" + member);
  EXPECT_EQ(refused_step("delta out_grad 0 -> query 0"), line + "'->' where 'with' is expected");
  EXPECT_EQ(refused_step("exchange keys 0"), line + "the line ends where 'from' is expected");
  EXPECT_EQ(refused_step("exchange keys 0 to all"), line + "'all' where a rank is expected");
  EXPECT_EQ(refused_step("exchange keys 0 to 1 keys 1 from 1"), line + "'keys' where 'and' is expected");
}

}  // namespace
}  // namespace startrail

#include "startrail/plan/check.h"

#include <gtest/gtest.h>

#include "startrail/base/testing.h"
#include "startrail/plan/make.h"
#include "startrail/plan/text.h"

namespace startrail {
namespace {

// What is wrong with a forward plan of two ranks whose steps are these.
std::string wrong(const std::string& rank0, const std::string& rank1, int slices = 1) {
  const std::string text = cat("plan forward ranks 2 slices ", slices, "\nrank 0\n", rank0, "rank 1\n", rank1);
  return error_of([&] { check_plan(plan_from_text(text)); });
}

// What is wrong with one step, taken first by rank 0 of two.
std::string wrong_step(const std::string& step, int slices = 1) {
  const std::string error = wrong(step + "\n", "", slices);
  const std::string head = cat("plan is wrong at rank 0, step 0 (", step, "): ");
  return error.starts_with(head) ? error.substr(head.size()) : error;
}

const std::string kSwapKeys0 = "exchange keys 0 to 1 and keys 1 from 1\n";
const std::string kSwapKeys1 = "exchange keys 1 to 0 and keys 0 from 0\n";
const std::string kAttend0 = "attend query 0 x keys 0\nattend query 0 x keys 1\n";
const std::string kAttend1 = "attend query 1 x keys 0\nattend query 1 x keys 1\n";
const std::string kRight0 = kSwapKeys0 + kAttend0, kRight1 = kSwapKeys1 + kAttend1;

TEST(CheckPlan, AcceptsARing) { EXPECT_EQ(wrong(kRight0, kRight1), "no error"); }

TEST(CheckPlan, AcceptsWhatNoGridMakes) {
  // Rank 0 does all the work, and rank 1 gets its result.
  EXPECT_EQ(wrong("exchange query 1 from 1\nexchange keys 1 from 1\n" + kAttend0 + kAttend1 + "exchange out 1 to 1\n",
                  "exchange query 1 to 0\nexchange keys 1 to 0\nexchange out 1 from 0\n"),
            "no error");
  // Rank 1 lends a hand with one tile of rank 0's, whose result joins what rank 0 has.
  EXPECT_EQ(wrong("exchange query 0 to 1\nexchange keys 0 to 1\nattend query 0 x keys 0\nexchange out 0 from 1\n",
                  "exchange query 0 from 0\nexchange keys 0 from 0\nattend query 0 x keys 1\nexchange out 0 to 0\n" +
                      kAttend1),
            "no error");
}

TEST(CheckPlan, RefusesAPairAttendedTwice) {
  EXPECT_EQ(wrong(kRight0 + "attend query 0 x keys 1\n", kRight1),
            "plan is wrong at rank 0, step 3 (attend query 0 x keys 1): out of chunk 0 meets chunk 1 twice");
  // By two ranks: the owner notices when it reads its result.
  EXPECT_EQ(wrong("exchange query 0 to 1\n" + kRight0 + "exchange out 0 from 1\n",
                  "exchange query 0 from 0\n" + kRight1 + "attend query 0 x keys 1\nexchange out 0 to 0\n"),
            "plan is wrong at rank 0, its end: out of chunk 0 meets chunk 1 twice");
}

TEST(CheckPlan, RefusesAPairNeverAttended) {
  EXPECT_EQ(wrong(kRight0, kSwapKeys1 + "attend query 1 x keys 0\n"),
            "plan is wrong at rank 1, its end: out of chunk 1 never meets chunk 1");
  EXPECT_EQ(wrong("attend query 0 x keys 0\n", "attend query 1 x keys 1\n"),
            "plan is wrong at rank 0, its end: out of chunk 0 never meets chunk 1");
  EXPECT_EQ(wrong("", ""), "plan is wrong at rank 0, its end: reads out 0, which it does not hold");
}

TEST(CheckPlan, RefusesAPairNeverAttendedInOneSlice) {
  Plan plan = make_plan({.heads = 2, .ring = 2}, Pass::forward);
  std::erase_if(plan.ranks[1], [](const Step& step) { return to_text(step) == "attend query 0,1 /1 x keys 2,3 /1"; });
  std::erase_if(plan.ranks[1], [](const Step& step) { return step.op == Op::exchange; });
  std::erase_if(plan.ranks[3], [](const Step& step) { return step.op == Op::exchange; });
  std::erase_if(plan.ranks[3], [](const Step& step) { return to_text(step) == "attend query 2,3 /1 x keys 0,1 /1"; });
  EXPECT_EQ(error_of([&] { check_plan(plan); }),
            "plan is wrong at rank 0, its end: out of chunk 0 never meets chunk 2 in slice 1");
}

TEST(CheckPlan, RefusesADeadlock) {
  // Each reads what the other sends only later.
  EXPECT_EQ(wrong("exchange keys 1 from 1\n" + kAttend0 + "exchange keys 0 to 1\n",
                  "exchange keys 0 from 0\n" + kAttend1 + "exchange keys 1 to 0\n"),
            "plan is wrong at rank 0, step 2 (attend query 0 x keys 1): waits for ever: rank 1 does not send keys 1");
  // One of them turned round is no deadlock; but without tags its receive must not come before its send either.
  const std::string late = "exchange keys 1 from 1\n" + kAttend0 + "exchange keys 0 to 1\n";
  EXPECT_EQ(wrong(late, "exchange keys 1 to 0\nexchange keys 0 from 0\n" + kAttend1), "no error");
  EXPECT_EQ(wrong(late, "exchange keys 0 from 0\nexchange keys 1 to 0\n" + kAttend1),
            "plan is wrong at rank 0, step 0 (exchange keys 1 from 1): without tags it waits for ever for rank 1 to "
            "send keys 1");
}

TEST(CheckPlan, RefusesWhatIsNotMatched) {
  EXPECT_EQ(wrong(kRight0 + "exchange query 0 to 1\n", kRight1),
            "plan is wrong: rank 0 sends query 0 to rank 1, which never receives it");
  EXPECT_EQ(wrong(kRight0 + "exchange query 1 from 1\n", kRight1),
            "plan is wrong at rank 0, its end: receives query 1, which nothing reads");
  EXPECT_EQ(wrong("exchange keys 0 to 1 and keys 0 from 1\nattend query 0 x keys 0\n", kRight1),
            "plan is wrong at rank 0, step 1 (attend query 0 x keys 0): rank 1 sends keys 1 where keys 0 is expected");
}

TEST(CheckPlan, RefusesReadingWhatIsNotThere) {
  EXPECT_EQ(wrong(kAttend0 + kSwapKeys0, kRight1),
            "plan is wrong at rank 0, step 1 (attend query 0 x keys 1): reads keys 1, which it does not hold");
  EXPECT_EQ(wrong("exchange keys 1 to 1\n" + kAttend0, kRight1),
            "plan is wrong at rank 0, step 0 (exchange keys 1 to 1): reads keys 1, which it does not hold");
}

TEST(CheckPlan, RefusesReadingWhatWasGivenAway) {
  const std::string rank1 = "exchange query 1 to 0\nexchange keys 1 to 0\nexchange out 1 from 0\n";
  const std::string work = "exchange query 1 from 1\nexchange keys 1 from 1\n" + kAttend0 + kAttend1;
  EXPECT_EQ(wrong(work + "exchange out 1 to 1\nexchange out 1 to 1\n", rank1),
            "plan is wrong at rank 0, step 7 (exchange out 1 to 1): reads out 1, which it does not hold");
  EXPECT_EQ(wrong(work + "exchange out 1 to 1\nexchange out 0 to 1\n", rank1),
            "plan is wrong at rank 0, its end: reads out 0, which it does not hold");
}

TEST(CheckPlan, RefusesWorkThatNobodyNeeds) {
  // Rank 1 attends a tile of rank 0's as well and throws the result away.
  EXPECT_EQ(
      wrong("exchange query 0 to 1\n" + kRight0, "exchange query 0 from 0\n" + kRight1 + "attend query 0 x keys 1\n"),
      "plan is wrong at rank 1, its end: keeps out 0, a partial result that nobody merges");
}

TEST(CheckPlan, RefusesAChunkTwiceInABlock) {
  // Both gather keys 0 twice: attending that block would count chunk 0 twice where a set sees it once.
  EXPECT_EQ(
      wrong("exchange keys 0 to 1\ngather keys 0 -> keys 0,0 over 0:0 1:0\nattend query 0 x keys 0,0\n",
            "exchange keys 0 from 0\ngather keys 0 -> keys 0,0 over 0:0 1:0\n"),
      "plan is wrong at rank 0, step 1 (gather keys 0 -> keys 0,0 over 0:0 1:0): it names a chunk twice in one block");
}

TEST(CheckPlan, RefusesEmptyPlans) {
  EXPECT_EQ(wrong("attend query 0 x keys 0\n", "attend query 1 x keys 1\n", 0),
            "plan is wrong: it has 2 ranks and 0 slices of the heads: there must be 1 or more of each");
  EXPECT_EQ(error_of([] { check_plan({}); }),
            "plan is wrong: it has 0 ranks and 1 slices of the heads: there must be 1 or more of each");
}

TEST(CheckPlan, RefusesStepsThatBreakTheirRule) {
  EXPECT_EQ(wrong_step("attend query 2 x keys 0"), "it names a chunk that no rank owns");
  EXPECT_EQ(wrong_step("attend query 0 x keys -1"), "it names a chunk that no rank owns");
  EXPECT_EQ(wrong_step("attend query 0 x keys 0 /1"), "it names a slice of the heads that is not there");
  EXPECT_EQ(wrong_step("attend query 0 x keys 0 /0"), "attend reads two slices of the heads");
  EXPECT_EQ(wrong_step("attend keys 0 x query 0"), "attend reads queries and keys");
  EXPECT_EQ(wrong_step("delta query 0 with saved 0 -> query 0"),
            "delta turns out_grad and saved into the query block of the same chunks");
  EXPECT_EQ(wrong_step("exchange keys 0 to 1 and query 1 from 1"),
            "an exchange sends and receives the same kind of data");
  EXPECT_EQ(wrong_step("exchange keys 0 to 0"), "it sends to a rank that is not a peer");
  EXPECT_EQ(wrong_step("exchange keys 0 to 2"), "it sends to a rank that is not a peer");
  EXPECT_EQ(wrong_step("exchange keys 0 from 0"), "it receives from a rank that is not a peer");
  EXPECT_EQ(wrong_step("exchange keys 0 from 2"), "it receives from a rank that is not a peer");
  EXPECT_EQ(wrong_step("gather keys 0 -> keys 1 over 1:1"), "the rank is not in its own group");
  EXPECT_EQ(wrong_step("gather keys 0 -> keys 0 over 0:0 0:none"), "a rank is in the group twice");
  const char* order = "the members' chunks are not those of the whole block, in its order";
  EXPECT_EQ(wrong_step("gather keys 0 -> keys 0 over 0:0 1:1"), order);
  EXPECT_EQ(wrong_step("gather keys 0 -> keys 1,0 over 0:0 1:1"), order);
  EXPECT_EQ(wrong_step("gather keys 0 -> keys 1,0 over 0:1 1:0"),
            "a gather brings the rank's own chunks of the group's");
  EXPECT_EQ(wrong_step("gather keys 0 -> query 0,1 over 0:0 1:1"),
            "a gather brings the rank's own chunks of the group's");
  EXPECT_EQ(wrong_step("merge keys 0 -> keys 0 over 0:0"), "only partial results are merged");
  EXPECT_EQ(wrong_step("all_to_all query 0 -> query 0,1 /1 over 0:0 1:1", 2),
            "an all-to-all trades the own chunks of all heads for the group's chunks of the own slice");
  EXPECT_EQ(wrong_step("all_to_all query 0 -> keys 0,1 /0 over 0:0 1:1", 2),
            "an all-to-all trades the own chunks of all heads for the group's chunks of the own slice");
  const std::string out = "attend query 0 x keys 0\n", place = "plan is wrong at rank 0, step 1 (";
  EXPECT_EQ(wrong(out + "gather out 0 -> out 0,1 over 0:0 1:1\n", ""),
            place + "gather out 0 -> out 0,1 over 0:0 1:1): partial results are merged, not gathered");
  EXPECT_EQ(wrong(out + "merge out 0 -> out 1 over 0:0\n", ""),
            place + "merge out 0 -> out 1 over 0:0): a merge keeps the rank's own chunks of the group's");
}

TEST(CheckPlan, RefusesAllHeadsWhereTheyAreSplit) {
  EXPECT_EQ(wrong_step("attend query 0 x keys 0", 2), "attend reads one slice of the heads where they are split");
}

TEST(CheckPlan, RefusesAResultOfOthersThatNothingReads) {
  // Merged with nobody: on its way to a place that is not this rank's to keep.
  EXPECT_EQ(wrong("exchange query 1 from 1\nattend query 1 x keys 0\nmerge out 1 -> out 1 over 0:1\n"
                  "attend query 0 x keys 0\n",
                  "exchange query 1 to 0\n"),
            "plan is wrong at rank 0, its end: receives out 1, which nothing reads");
}

TEST(CheckPlan, RefusesStepsThatTextCannotSay) {
  Plan plan;
  plan.owners = {0};
  plan.ranks = {{{.op = Op::exchange}}};
  EXPECT_EQ(error_of([&] { check_plan(plan); }),
            "plan is wrong at rank 0, step 0 (exchange ): an exchange sends or receives");
  EXPECT_EQ(wrong_step("attend query none x keys 0"), "it names a block without chunks");
}

TEST(CheckPlan, DeltaIsTakenOnceAndAtHome) {
  const auto wrong_backward = [](const std::string& rank0, const std::string& rank1) {
    const std::string text = cat("plan backward_keys ranks 2 slices 1\nrank 0\n", rank0, "rank 1\n", rank1);
    return error_of([&] { check_plan(plan_from_text(text)); });
  };
  const std::string delta = "delta out_grad 0 with saved 0 -> query 0\n";
  const std::string rule = "step 1 (delta out_grad 0 with saved 0 -> query 0): reads saved 0, which it does not hold";
  EXPECT_EQ(wrong_backward(delta + delta, ""), "plan is wrong at rank 0, " + rule);
  const std::string home = "delta out_grad 1 with saved 1 -> query 1\nattend query 1 x keys 1\n";
  EXPECT_EQ(wrong_backward("exchange out_grad 0 to 1\n" + delta + "attend query 0 x keys 0\n",
                           "exchange out_grad 0 from 0\n" + delta + home),
            "plan is wrong at rank 1, " + rule);
}

TEST(CheckPlan, WhatTheForwardSavedStaysAtHome) {
  const auto wrong_backward = [](const std::string& rank0) {
    return error_of(
        [&] { check_plan(plan_from_text("plan backward_keys ranks 2 slices 1\nrank 0\n" + rank0 + "\nrank 1\n")); });
  };
  for (const char* step :
       {"exchange saved 0 to 1", "exchange saved 1 from 1", "gather saved 0 -> saved 0,1 over 0:0 1:1"})
    EXPECT_EQ(wrong_backward(step),
              cat("plan is wrong at rank 0, step 0 (", step, "): what the forward saved stays where it is"));
}

TEST(CheckVolume, NamesTheRankTheKindAndTheGrid) {
  const Layout layout{Order::zigzag, 64, 4};
  const Problem problem = make_problem({.heads = 4, .key_heads = 4, .dim = 8}, layout, layout);
  const Plan ring = make_plan({.ring = 4}, Pass::forward);
  EXPECT_NO_THROW(check_volume(ring, {.ring = 4}, {problem}));
  // 16 tokens x 4 heads x 8 x 4 bytes, of keys and values: 4096 bytes a hop, three times.
  EXPECT_EQ(error_of([&] { check_volume(ring, {.team = 2, .stripe = 2}, {problem}); }),
            "plan is wrong at rank 0: it sends 12288 bytes of p2p, but the formula for heads=1,team=2,ring=1,stripe=2 "
            "says 0");
}

}  // namespace
}  // namespace startrail

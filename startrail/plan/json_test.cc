#include "startrail/plan/json.h"

#include <gtest/gtest.h>

#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "startrail/base/testing.h"
#include "startrail/plan/make.h"
#include "startrail/plan/memory.h"
#include "startrail/plan/summary.h"
#include "startrail/plan/text.h"

namespace startrail {
namespace {

using nlohmann::json;

Problem uneven_problem(const Grid& grid) {
  const int ranks = grid.ranks();
  return make_problem({.batch = 2, .heads = 2 * grid.heads, .key_heads = 2 * grid.heads, .dim = 8},
                      {Order::zigzag, 5 * ranks + 3, ranks}, {Order::zigzag, 5 * ranks + 3, ranks});
}
PlanSubject causal() { return {.type = "float32", .partial = "float32", .layout = "zigzag", .mask = {.causal = true}}; }

TEST(PlanJson, HoldsWholePlans) {
  for (const Grid& grid : every_grid(12))
    for (Pass pass : kPasses) {
      const Plan plan = make_plan(grid, pass);
      const json stored = to_json(plan);
      ASSERT_EQ(plan_from_json(stored), plan) << to_text(grid);
      std::set<json> distinct(stored["blocks"].begin(), stored["blocks"].end());
      ASSERT_EQ(distinct.size(), stored["blocks"].size()) << "a block is listed twice";
    }
}

TEST(PlanJson, RefusesWhatItWouldNotWrite) {
  const json whole = to_json(make_plan(parse_grid("startrail:2", 4), Pass::forward));
  const auto refused = [&](const char* pointer, const json& value) {
    json changed = whole;
    changed[json::json_pointer(pointer)] = value;
    return error_of([&] { plan_from_json(changed); });
  };
  EXPECT_EQ(refused("/pass", "sideways"), "\"sideways\" is no pass");
  EXPECT_EQ(refused("/slices", "one"), "a key is missing, or of another type");
  EXPECT_EQ(refused("/ranks/0/0/0", "divide"), "\"divide\" is no operation");
  EXPECT_EQ(refused("/ranks/0/0/1", 99), cat("block 99 is not one of ", whole["blocks"].size()));
  EXPECT_EQ(refused("/ranks/0/0/1", -1), cat("block -1 is not one of ", whole["blocks"].size()));
  EXPECT_EQ(refused("/blocks/0/1/0", 77), "chunk 77 is not one of 4");
  EXPECT_EQ(refused("/blocks/0/0", "tea"), "\"tea\" is no kind of data");
  EXPECT_EQ(refused("/ranks/0/0/3/0/0", 4), "rank 4 is not one of 4");
  EXPECT_EQ(refused("/owners/0", -1), "rank -1 is not one of 4");
  EXPECT_EQ(error_of([] { plan_from_json(json::object()); }), "a key is missing, or of another type");
}

TEST(PlanJson, EchoesTheProblem) {
  const Grid grid = parse_grid("heads=2,team=2,ring=2,stripe=1,order=team-heads-ring-stripe", 8);
  const Problem problem = make_problem({.batch = 3, .heads = 8, .key_heads = 2, .dim = 16, .element_bytes = 2},
                                       {Order::striped, 100, 8}, {Order::striped, 100, 8});
  PlanSubject subject{.type = "bfloat16", .partial = "float32", .layout = "striped", .mask = {.window = 9}};
  subject.checked = true;
  const json plan = plan_json(grid, problem, subject);
  EXPECT_EQ(plan["kind"], "plan");
  EXPECT_EQ(plan["format"], kPlanFormat);
  EXPECT_EQ(plan["name"], to_text(grid)) << "a grid without a name";
  EXPECT_EQ(plan["axes"], json::parse(R"({"heads": 2, "team": 2, "ring": 2, "stripe": 1})"));
  EXPECT_EQ(plan["order"], json::parse(R"(["team", "heads", "ring", "stripe"])"));
  EXPECT_EQ(plan["problem"], json::parse(R"({"tokens": 100, "key_tokens": 100, "batch": 3, "heads": 8, "kv_heads": 2,
    "dim": 16, "dtype": "bfloat16", "partial": "float32", "mask": "full, window 9", "layout": "striped"})"));
  EXPECT_EQ(plan["lines"]["teams"], json::parse("[[0,1],[2,3],[4,5],[6,7]]"));
  EXPECT_EQ(plan["lines"]["head_groups"], json::parse("[[0,2],[1,3],[4,6],[5,7]]"));
  EXPECT_EQ(plan["lines"]["rings"], json::parse("[[0,4],[1,5],[2,6],[3,7]]"));
  EXPECT_EQ(plan["tokens_of"], json::parse("[13,13,13,13,12,12,12,12]"));
  EXPECT_EQ(plan["checked"], true);
  EXPECT_TRUE(plan["nodes"].is_null());
  EXPECT_TRUE(plan["passes"][0]["leaves_node"].is_null());
  EXPECT_EQ(plan["backward"], to_text(cheaper_backward(grid, problem)));
}

// What each rank sends, of all messages, is what the volumes say; so is the memory.
TEST(PlanJson, MessagesAndMemoryAddUp) {
  for (int ranks : {1, 6, 8})
    for (const Grid& grid : every_grid(ranks)) {
      const Problem problem = uneven_problem(grid);
      const json plan = plan_json(grid, problem, causal());
      for (const json& pass : plan["passes"]) {
        std::map<int, int64_t> sent;
        for (const json& message : pass["messages"]) {
          sent[message[1]] += message[4].get<int64_t>();
          const json& step = pass["ranks"][message[1].get<int>()][message[0].get<int>()];
          EXPECT_EQ(message[3] == "p2p" ? "exchange" : message[3], step[0]);
        }
        int64_t most = 0, held = 0;
        for (const auto& [rank, bytes] : sent) most = std::max(most, bytes);
        EXPECT_EQ(pass["volume"]["total"], most) << to_text(grid);
        ASSERT_EQ(pass["held_bytes"].size(), static_cast<size_t>(ranks));
        for (int rank = 0; rank < ranks; ++rank) {
          ASSERT_EQ(pass["held_bytes"][rank].size(), pass["ranks"][rank].size() + 1);
          for (const json& bytes : pass["held_bytes"][rank]) held = std::max(held, bytes.get<int64_t>());
        }
        EXPECT_LE(held, pass["peak_bytes"].get<int64_t>()) << to_text(grid);
        EXPECT_GE(static_cast<double>(held), 0.8 * pass["peak_bytes"].get<double>()) << to_text(grid);
      }
    }
}

TEST(PlanJson, TellsWhatIsSeen) {
  const Grid grid = parse_grid("ring", 4);
  const Problem problem = make_problem({.heads = 1}, {Order::contiguous, 4000, 4}, {Order::contiguous, 4000, 4});
  PlanSubject subject{.mask = {.causal = true}};
  const json seen = plan_json(grid, problem, subject)["visible"];
  for (int q = 0; q < 4; ++q)
    for (int k = 0; k < 4; ++k) EXPECT_NEAR(seen[q][k].get<double>(), q == k ? 0.5 : q > k ? 1 : 0, 1e-3);
  // One pair of a million is not none.
  subject.mask = {.causal = true, .window = 2};
  EXPECT_EQ(plan_json(grid, problem, subject)["visible"][1][0], 0.001);
}

TEST(PlanJson, CountsNodesAndOneRank) {
  const Grid grid = parse_grid("startrail:2", 16);
  const Problem problem = make_problem({.heads = 8}, {Order::zigzag, 4096, 16}, {Order::zigzag, 4096, 16});
  PlanSubject subject = causal();
  subject.cluster = make_cluster(16, 8);
  const json plan = plan_json(grid, problem, subject);
  EXPECT_EQ(plan["nodes"], json::parse("[0,0,0,0,0,0,0,0,1,1,1,1,1,1,1,1]"));
  std::map<int, int64_t> leaves;
  for (const json& message : plan["passes"][0]["messages"])
    if (message[1].get<int>() / 8 != message[2].get<int>() / 8) leaves[message[1]] += message[4].get<int64_t>();
  int64_t most = 0;
  for (const auto& [rank, bytes] : leaves) most = std::max(most, bytes);
  EXPECT_GT(most, 0);
  EXPECT_EQ(plan["passes"][0]["leaves_node"], most);
  subject.rank = 3;
  const json one = plan_json(grid, problem, subject);
  EXPECT_EQ(one["rank"], 3);
  EXPECT_EQ(one["passes"][0]["leaves_node"], most) << "of any rank";
  ASSERT_EQ(one["passes"][0]["ranks"].size(), 1u);
  EXPECT_EQ(one["passes"][0]["ranks"][0], plan["passes"][0]["ranks"][3]);
  EXPECT_EQ(one["passes"][0]["held_bytes"][0], plan["passes"][0]["held_bytes"][3]);
  for (const json& message : one["passes"][0]["messages"]) EXPECT_EQ(message[1], 3);
}

}  // namespace
}  // namespace startrail

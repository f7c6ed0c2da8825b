#include "startrail/run/trace.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <chrono>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <thread>

#include "startrail/base/testing.h"
#include "startrail/run/comm/ranks.h"

namespace startrail {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

// What write_trace gives for these ranks, parsed.
json written(const std::vector<std::shared_ptr<RankTrace>>& ranks) {
  const fs::path file = fs::path(testing::TempDir()) / cat("startrail-trace-", RankTrace::now_us(), ".json");
  write_trace(file, ranks);
  std::ifstream in(file);
  const json trace = json::parse(in);
  in.close();
  fs::remove(file);
  return trace;
}

// The events of one kind ("X" work, "b" and "e" the ends of a transfer, "M" names) of a rank.
std::vector<json> events(const json& trace, const std::string& kind, int rank) {
  std::vector<json> found;
  for (const json& event : trace.at("traceEvents"))
    if (event.at("ph") == kind && event.at("pid") == rank) found.push_back(event);
  return found;
}

TEST(Trace, HasSpansOfWorkInMicroseconds) {
  const auto trace = std::make_shared<RankTrace>(3);
  const double start = RankTrace::now_us();
  std::this_thread::sleep_for(std::chrono::milliseconds(5));
  const double inner = RankTrace::now_us();
  trace->span("inner \"quoted\"", inner);
  trace->span("outer", start);
  const std::vector<json> spans = events(written({trace}), "X", 3);
  ASSERT_EQ(spans.size(), 2u);
  EXPECT_EQ(spans[0].at("name"), "inner \"quoted\"");
  EXPECT_EQ(spans[1].at("name"), "outer");
  EXPECT_EQ(spans[1].at("ts"), 0);  // times count from the first event
  EXPECT_NEAR(spans[0].at("ts").get<double>(), inner - start, 1e-6);
  EXPECT_GE(spans[1].at("dur").get<double>(), 5000);
  EXPECT_LT(spans[0].at("dur").get<double>(), spans[1].at("dur").get<double>());
}

TEST(Trace, HasEachTransferAsAPairWithItsPeerAndBytes) {
  const auto trace = std::make_shared<RankTrace>(1);
  const double start = RankTrace::now_us();
  trace->transfer("p2p", 4, 1000, start + 1);  // posted later, there first: transfers overlap
  trace->transfer("merge", 0, 50, start);
  const json all = written({trace});
  const std::vector<json> begins = events(all, "b", 1), ends = events(all, "e", 1);
  ASSERT_EQ(begins.size(), 2u);
  ASSERT_EQ(ends.size(), 2u);
  EXPECT_EQ(begins[0].at("name"), "p2p from 4");
  EXPECT_EQ(begins[0].at("args"), (json{{"from", 4}, {"bytes", 1000}}));
  EXPECT_EQ(begins[1].at("name"), "merge from 0");
  EXPECT_EQ(begins[1].at("args"), (json{{"from", 0}, {"bytes", 50}}));
  EXPECT_EQ(begins[1].at("ts"), 0);
  EXPECT_NE(begins[0].at("id"), begins[1].at("id"));
  for (size_t i = 0; i < 2; ++i)
    for (const char* key : {"id", "cat", "name"}) EXPECT_EQ(begins[i].at(key), ends[i].at(key));
  EXPECT_GE(ends[1].at("ts").get<double>(), begins[1].at("ts").get<double>());
}

TEST(Trace, JoinsTheStepsAndMessagesOfAllRanks) {
  std::vector<std::shared_ptr<RankTrace>> traces;
  for (int rank = 0; rank < 3; ++rank) traces.push_back(std::make_shared<RankTrace>(rank));
  run_ranks(3, 2, [&](const std::shared_ptr<Group>& group) {
    group->record_to(traces[group->rank()]);
    group->all_gather(at::zeros({5}));
    group->timed(Op::attend, [] {});
    group->record_to(nullptr);
    group->all_gather(at::zeros({5}));
    group->timed(Op::attend, [] {});
  });
  const json all = written(traces);
  std::set<std::string> ids;
  for (int rank = 0; rank < 3; ++rank) {
    const std::vector<json> names = events(all, "M", rank), work = events(all, "X", rank);
    ASSERT_FALSE(names.empty());
    EXPECT_EQ(names[0].at("args").at("name"), cat("rank ", rank));
    ASSERT_EQ(work.size(), 1u);
    EXPECT_EQ(work[0].at("name"), "attend");
    std::set<int> peers;
    for (const json& begin : events(all, "b", rank)) {
      const int peer = begin.at("args").at("from");
      peers.insert(peer);
      ids.insert(begin.at("id"));
      EXPECT_EQ(begin.at("name"), cat("gather from ", peer));
      EXPECT_EQ(begin.at("args").at("bytes"), 20);
    }
    EXPECT_EQ(peers, rank == 0 ? (std::set{1, 2}) : rank == 1 ? (std::set{0, 2}) : (std::set{0, 1}));
    EXPECT_EQ(events(all, "b", rank).size(), 2u);  // what was received, not what was sent
    EXPECT_EQ(events(all, "e", rank).size(), 2u);
  }
  EXPECT_EQ(ids.size(), 6u);  // viewers join pairs by id alone
}

TEST(Trace, OfNothingIsValidToo) {
  EXPECT_TRUE(written({}).at("traceEvents").empty());
  EXPECT_TRUE(events(written({std::make_shared<RankTrace>(0)}), "X", 0).empty());
}

TEST(Trace, RefusesAFileThatCannotBeWritten) {
  const fs::path file = fs::path(testing::TempDir()) / "no-such-folder" / "trace.json";
  EXPECT_EQ(error_of([&] { write_trace(file, {std::make_shared<RankTrace>(0)}); }),
            cat("the trace ", file.string(), " cannot be written: give a file in a folder that exists"));
}

}  // namespace
}  // namespace startrail

#include "startrail/base/trace.h"

#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <set>

#include "startrail/base/testing.h"

namespace startrail {
namespace {

using nlohmann::json;

json read(const std::filesystem::path& file) {
  std::ifstream in(file);
  return json::parse(in);
}

// What write_traces gives for these ranks, parsed.
json written(const std::vector<std::shared_ptr<RankTrace>>& ranks, const std::vector<double>& shift_us = {}) {
  const TempFolder folder;
  std::vector<std::string> texts;
  for (const auto& rank : ranks) texts.push_back(trace_text(*rank));
  write_traces(folder.path("trace.json"), texts, {{"source", "measured"}, {"ranks", ranks.size()}}, shift_us);
  return read(folder.path("trace.json"));
}

// The events of one kind ("X" work, "b" and "e" the ends of a transfer, "s" and "f" those of an arrow, "M" names) of a
// rank.
std::vector<json> events(const json& trace, const std::string& kind, int rank) {
  std::vector<json> found;
  for (const json& event : trace.at("traceEvents"))
    if (event.at("ph") == kind && event.at("pid") == rank) found.push_back(event);
  return found;
}

TEST(Trace, HasSpansOfWorkInMicroseconds) {
  const auto trace = std::make_shared<RankTrace>(3);
  trace->add({"inner \"quoted\"", TraceKind::wait, 1020.5, 1030, {}, 2, 64});
  trace->add({"attend", TraceKind::compute, 1000, 1050.0001234, {"backward_keys", 2, 5, "query 0 x keys 1"}});
  const std::vector<json> spans = events(written({trace}), "X", 3);
  ASSERT_EQ(spans.size(), 2u);
  EXPECT_EQ(spans[0].at("name"), "inner \"quoted\"");
  EXPECT_EQ(spans[0].at("cat"), "wait");
  EXPECT_EQ(spans[0].at("ts"), 20.5);  // times count from the first event
  EXPECT_EQ(spans[0].at("dur"), 9.5);
  EXPECT_EQ(spans[0].at("args"), (json{{"peer", 2}, {"bytes", 64}}));
  EXPECT_EQ(spans[1].at("cat"), "compute");
  EXPECT_EQ(spans[1].at("ts"), 0);
  EXPECT_EQ(spans[1].at("dur"), 50) << "three decimals, not seventeen";
  EXPECT_EQ(spans[1].at("args"),
            (json{{"pass", "backward_keys"}, {"layer", 2}, {"step", 5}, {"block", "query 0 x keys 1"}}));
}

TEST(Trace, SaysWhatItIsOf) {
  const json about = written({std::make_shared<RankTrace>(0)}).at("otherData");
  EXPECT_EQ(about.at("kind"), "trace");
  EXPECT_EQ(about.at("format"), kTraceFormat);
  EXPECT_EQ(about.at("source"), "measured");
  EXPECT_EQ(about.at("ranks"), 1);
  EXPECT_TRUE(about.contains("version"));
}

TEST(Trace, LeavesOutWaitsTooShortToBeSeen) {
  RankTrace trace(0);
  trace.add_wait({"wait", TraceKind::wait, 10, 10.5});
  trace.add_wait({"wait", TraceKind::wait, 10, 12});
  ASSERT_EQ(trace.events().size(), 1u);
  EXPECT_EQ(trace.events()[0].end_us, 12);
}

TEST(Trace, HasEachTransferAsAPairWithItsPeerAndBytes) {
  const auto trace = std::make_shared<RankTrace>(1);
  // Posted later, there first: transfers overlap.
  trace->add_message({.kind = "p2p",
                      .peer = 4,
                      .tag = 9,
                      .number = 2,
                      .bytes = 1000,
                      .posted_us = 11,
                      .arrived_us = 15,
                      .read_us = 18.25,
                      .label = {"forward", -1, 0, "keys 4"}});
  trace->add_message({.kind = "merge", .peer = 0, .bytes = 50, .posted_us = 10, .read_us = 30});
  const json all = written({trace});
  const std::vector<json> begins = events(all, "b", 1), ends = events(all, "e", 1), arrows = events(all, "f", 1);
  ASSERT_EQ(begins.size(), 2u);
  ASSERT_EQ(ends.size(), 2u);
  ASSERT_EQ(arrows.size(), 2u);
  EXPECT_EQ(begins[0].at("name"), "p2p from 4");
  EXPECT_EQ(begins[0].at("args"),
            (json{{"from", 4}, {"bytes", 1000}, {"pass", "forward"}, {"step", 0}, {"block", "keys 4"}}));
  EXPECT_EQ(ends[0].at("ts"), 5);
  EXPECT_EQ(ends[0].at("args"), (json{{"read_after", 3.25}}));
  EXPECT_EQ(begins[1].at("name"), "merge from 0");
  EXPECT_EQ(begins[1].at("args"), (json{{"from", 0}, {"bytes", 50}}));
  EXPECT_EQ(begins[1].at("ts"), 0);
  EXPECT_EQ(ends[1].at("ts"), 20) << "not known when it came: when it was read";
  EXPECT_EQ(ends[1].at("args"), (json{{"arrived", "earlier"}}));
  EXPECT_NE(begins[0].at("id"), begins[1].at("id"));
  for (size_t i = 0; i < 2; ++i) {
    for (const char* key : {"id", "cat", "name"}) EXPECT_EQ(begins[i].at(key), ends[i].at(key));
    EXPECT_EQ(arrows[i].at("ts"), ends[i].at("ts"));
    EXPECT_EQ(arrows[i].at("bp"), "e") << "without it viewers look for a later span";
  }
}

// Both ends of an arrow have one id and name, on the tracks of their ranks.
TEST(Trace, DrawsArrowsFromSenderToReceiver) {
  std::vector<std::shared_ptr<RankTrace>> traces;
  for (int rank = 0; rank < 2; ++rank) {
    traces.push_back(std::make_shared<RankTrace>(rank));
    const int peer = 1 - rank;
    for (int i = 0; i < 2; ++i) {
      EXPECT_EQ(traces[rank]->count(true, peer, 7), i);
      EXPECT_EQ(traces[rank]->count(false, peer, 7), i) << "sends and receives are counted apart";
      traces[rank]->add_message(
          {.sent = true, .kind = "p2p", .peer = peer, .tag = 7, .number = i, .posted_us = 1.0 + i});
      traces[rank]->add_message(
          {.kind = "p2p", .peer = peer, .tag = 7, .number = i, .arrived_us = 5.0 + i, .read_us = 9});
    }
    EXPECT_EQ(traces[rank]->count(true, peer, 8), 0);
  }
  const json all = written(traces);
  for (int rank = 0; rank < 2; ++rank) {
    const auto starts = events(all, "s", rank), ends = events(all, "f", 1 - rank);
    ASSERT_EQ(starts.size(), 2u);
    ASSERT_EQ(ends.size(), 2u);
    for (size_t i = 0; i < 2; ++i) {
      for (const char* key : {"id", "cat", "name", "tid"}) EXPECT_EQ(starts[i].at(key), ends[i].at(key));
      EXPECT_LT(starts[i].at("ts"), ends[i].at("ts"));
    }
    EXPECT_NE(starts[0].at("id"), starts[1].at("id"));
    EXPECT_TRUE(starts[0].at("id").is_number_integer()) << "Perfetto draws no arrow for other names";
  }
}

TEST(Trace, PutsClocksThatDifferTogether) {
  std::vector<std::shared_ptr<RankTrace>> traces;
  for (int rank = 0; rank < 3; ++rank) {
    traces.push_back(std::make_shared<RankTrace>(rank));
    traces.back()->add({"forward", TraceKind::phase, 5e9 + 10 * rank, 5e9 + 10 * rank + 4});
  }
  EXPECT_EQ(events(written(traces), "X", 1)[0].at("ts"), 10);
  const json shifted = written(traces, {0, 100, 0});  // the second rank's stands 100 us behind
  EXPECT_EQ(events(shifted, "X", 1)[0].at("ts"), 110);
  EXPECT_EQ(events(shifted, "X", 2)[0].at("ts"), 20);
}

TEST(Trace, RefusesTextsThatAreNone) {
  const TempFolder folder;
  for (const char* text : {"", "{\"traceEvents\": [", "[]", "{\"events\": []}"})
    EXPECT_EQ(error_of([&] { write_traces(folder.path("all.json"), {text}, {}); }),
              "what rank 0 sent is not a trace of a rank: it was not written, or not to its end");
}

TEST(Trace, OfNothingIsValidToo) {
  EXPECT_TRUE(written({}).at("traceEvents").empty());
  EXPECT_TRUE(events(written({std::make_shared<RankTrace>(0)}), "X", 0).empty());
}

TEST(Trace, RefusesAFileThatCannotBeWritten) {
  const TempFolder folder;
  const std::string file = folder.path("no-such-folder/trace.json");
  EXPECT_EQ(error_of([&] { write_traces(file, {trace_text(RankTrace(0))}, {}); }),
            cat("the trace ", file, " cannot be written: No such file or directory"));
}

}  // namespace
}  // namespace startrail

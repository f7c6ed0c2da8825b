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
json written(const std::vector<std::shared_ptr<RankTrace>>& ranks) {
  const TempFolder folder;
  std::vector<std::string> texts;
  for (const auto& rank : ranks) texts.push_back(trace_text(*rank));
  write_traces(folder.path("trace.json"), texts);
  return read(folder.path("trace.json"));
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
  trace->add({"inner \"quoted\"", 1020.5, 1030});
  trace->add({"attend", 1000, 1050, {"backward_keys", 2, 5, "query 0 x keys 1"}});
  const std::vector<json> spans = events(written({trace}), "X", 3);
  ASSERT_EQ(spans.size(), 2u);
  EXPECT_EQ(spans[0].at("name"), "inner \"quoted\"");
  EXPECT_EQ(spans[0].at("ts"), 20.5);  // times count from the first event
  EXPECT_EQ(spans[0].at("dur"), 9.5);
  EXPECT_FALSE(spans[0].contains("args"));
  EXPECT_EQ(spans[1].at("ts"), 0);
  EXPECT_EQ(spans[1].at("dur"), 50);
  EXPECT_EQ(spans[1].at("args"),
            (json{{"pass", "backward_keys"}, {"layer", 2}, {"step", 5}, {"block", "query 0 x keys 1"}}));
}

TEST(Trace, HasEachTransferAsAPairWithItsPeerAndBytes) {
  const auto trace = std::make_shared<RankTrace>(1);
  trace->add({"p2p", 11, 15, {"forward", -1, 0, "keys 4"}, 4, 1000});  // posted later, there first: transfers overlap
  trace->add({"merge", 10, 30, {}, 0, 50});
  const json all = written({trace});
  const std::vector<json> begins = events(all, "b", 1), ends = events(all, "e", 1);
  ASSERT_EQ(begins.size(), 2u);
  ASSERT_EQ(ends.size(), 2u);
  EXPECT_EQ(begins[0].at("name"), "p2p from 4");
  EXPECT_EQ(begins[0].at("args"),
            (json{{"from", 4}, {"bytes", 1000}, {"pass", "forward"}, {"step", 0}, {"block", "keys 4"}}));
  EXPECT_EQ(begins[1].at("name"), "merge from 0");
  EXPECT_EQ(begins[1].at("args"), (json{{"from", 0}, {"bytes", 50}}));
  EXPECT_EQ(begins[1].at("ts"), 0);
  EXPECT_EQ(ends[1].at("ts"), 20);
  EXPECT_NE(begins[0].at("id"), begins[1].at("id"));
  for (size_t i = 0; i < 2; ++i)
    for (const char* key : {"id", "cat", "name"}) EXPECT_EQ(begins[i].at(key), ends[i].at(key));
}

TEST(Trace, OfRanksInFilesOfTheirOwnMergesIntoTheSame) {
  std::vector<std::shared_ptr<RankTrace>> traces;
  const TempFolder folder;
  std::vector<std::filesystem::path> files;
  for (int rank = 0; rank < 3; ++rank) {
    traces.push_back(std::make_shared<RankTrace>(rank));
    traces.back()->add({"forward", 5e9 + 10 * rank, 5e9 + 10 * rank + 4});
    traces.back()->add({"gather", 5e9, 5e9 + 7, {}, (rank + 1) % 3, 8});
    files.push_back(folder.path(cat("rank-", rank, ".json")));
    std::ofstream(files.back()) << trace_text(*traces.back());
  }
  merge_traces(files, folder.path("all.json"));
  EXPECT_EQ(read(folder.path("all.json")), written(traces));
  // Clocks that differ: the second rank's stands 100 us behind.
  merge_traces(files, folder.path("shifted.json"), {0, 100, 0});
  EXPECT_EQ(events(read(folder.path("shifted.json")), "X", 1)[0].at("ts"), 110);
  EXPECT_EQ(events(read(folder.path("shifted.json")), "X", 2)[0].at("ts"), 20);
}

TEST(Trace, RefusesToMergeWhatIsNone) {
  const TempFolder folder;
  for (const char* text : {"", "{\"traceEvents\": [", "[]", "{\"events\": []}"}) {
    const std::string file = folder.write("rank.json", text);
    EXPECT_EQ(error_of([&] { merge_traces({file}, folder.path("all.json")); }),
              file + " is not a trace of a rank: it was not written, or not to its end");
  }
}

TEST(Trace, OfNothingIsValidToo) {
  EXPECT_TRUE(written({}).at("traceEvents").empty());
  EXPECT_TRUE(events(written({std::make_shared<RankTrace>(0)}), "X", 0).empty());
}

TEST(Trace, RefusesAFileThatCannotBeWritten) {
  const TempFolder folder;
  const std::string file = folder.path("no-such-folder/trace.json");
  EXPECT_EQ(error_of([&] { write_traces(file, {trace_text(RankTrace(0))}); }),
            cat("the trace ", file, " cannot be written: No such file or directory"));
}

}  // namespace
}  // namespace startrail

// startrail show and what it shows: pages, their data, and losses in the terminal. A browser looks at the pages in
// tests/pages/.
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <set>

#include "cli/page/page.h"
#include "startrail/base/testing.h"
#include "startrail/base/text.h"
#include "startrail/base/trace.h"
#include "tests/command.h"

namespace startrail {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

std::string text_of(const fs::path& file) {
  std::ifstream in(file);
  return std::string(std::istreambuf_iterator<char>(in), {});
}

// What a page holds, as its script reads it.
json data_of(const std::string& page) {
  const std::string open = "id=\"data\">";
  const size_t begin = page.find(open) + open.size(), end = page.find("</script>", begin);
  return json::parse(page.substr(begin, end - begin));
}

class Show : public testing::Test {
 protected:
  Ended show(const std::string& arguments) { return run_command(cat("show ", arguments, " --out ", page_)); }
  json shown(const std::string& arguments) {
    const Ended ended = show(arguments);
    EXPECT_EQ(ended.code, 0) << ended.text;
    return data_of(text_of(page_));
  }
  void expect_refused(const std::string& arguments, const std::string& reason) {
    const Ended ended = show(arguments);
    EXPECT_EQ(ended.code, 2) << ended.text;
    EXPECT_NE(ended.text.find(reason), std::string::npos) << ended.text;
    EXPECT_FALSE(fs::exists(page_));
  }

  TempFolder folder_;
  std::string page_ = folder_.path("page.html");
};

// The page's numbers are the command's, for even, uneven and split grids.
TEST_F(Show, HasThePlansOfTheCommand) {
  for (const std::string flags :
       {"--ranks 16 --grid startrail:2", "--ranks 6 --grid team=3 --tokens 100 --window 7 --layout striped",
        "--ranks 8 --grid heads=2,team=2,ring=2 --heads 8 --kv-heads 2 --dtype bfloat16 --ranks-per-node 4"}) {
    const json data = shown(flags + " --compare ring");
    const json printed = json::parse(run_command(cat("plan --check --json ", flags)).text);
    ASSERT_EQ(data["plans"].size(), 2u);
    EXPECT_EQ(data["plans"][0], printed);
    EXPECT_EQ(data["plans"][1]["name"], "ring");
    for (int pass : {0, 1, 2}) EXPECT_EQ(data["plans"][1]["passes"][pass]["pass"], printed["passes"][pass]["pass"]);
    EXPECT_EQ(data["plans"][1]["passes"][0]["volume"], printed["passes"][0]["ring_volume"]);
    EXPECT_EQ(data["plans"][1]["passes"][0]["peak_bytes"], printed["passes"][0]["ring_peak_bytes"]);
    EXPECT_EQ(data["format"], cli::kPageFormat);
  }
}

TEST_F(Show, TakesPlansFromFiles) {
  const std::string plan = run_command("plan --ranks 4 --grid ring --check --json").text;
  json view = shown(folder_.write("plan.json", plan))["plans"][0];
  EXPECT_EQ(view["file"], folder_.path("plan.json"));
  view.erase("file");
  EXPECT_TRUE(view == json::parse(plan));
  fs::remove(page_);
  expect_refused(folder_.write("one.json", run_command("plan --ranks 4 --rank 1 --json").text), "leave out --rank");
  json other = json::parse(plan);
  other["format"] = 99;
  expect_refused(folder_.write("other.json", other.dump()), "in another form");
}

// A page trusts its data: what a file says is looked at before.
TEST_F(Show, ProvesPlansFromFilesAnew) {
  const json plan = json::parse(run_command("plan --ranks 4 --grid ring --json").text);
  const auto changed = [&](const char* pointer, const json& value) {
    json other = plan;
    other[json::json_pointer(pointer)] = value;
    return folder_.write("plan.json", other.dump());
  };
  EXPECT_EQ(shown(changed("/checked", false))["plans"][0]["checked"], true);
  // Steps that are wrong are shown, and not called proved: to see what is wrong with them is what pages are for.
  const json steps = plan["passes"][0]["ranks"][0];
  size_t attend = 0;
  while (steps[attend][0] != "attend") ++attend;
  const std::string keys = cat("/passes/0/ranks/0/", attend, "/2");
  size_t last = steps.size();
  while (steps[--last][0] != "attend") continue;
  EXPECT_EQ(shown(changed(keys.c_str(), steps[last][2]))["plans"][0]["checked"], false);
  fs::remove(page_);
  for (const auto& [pointer, value, reason] :
       {std::tuple{"/ranks", json(1000000), "not of so many ranks"},
        std::tuple{"/passes", json::array(), "a key is missing"}, std::tuple{"/lines", json(7), "a key is missing"},
        std::tuple{"/lines/rings", json::array(), "rings leave out a rank"},
        std::tuple{"/lines/rings/0/0", json(99), "a rank that there is not"},
        std::tuple{"/passes/0/messages/0/1", json(99), "a message is between ranks"},
        std::tuple{"/passes/0/messages/0/3", json("pigeon"), "a message is of a kind that there is not"},
        std::tuple{"/passes/0/messages/0/4", json(1 << 30), "bytes as its volume says"},
        std::tuple{"/passes/1/volume/total", json(1), "bytes as its volume says (total)"},
        std::tuple{"/passes/0/blocks/0/1/0", json(77), "chunk 77 is not one of 4"},
        std::tuple{"/passes/0/held_bytes/0", json::array(), "held_bytes has a row of another length"},
        std::tuple{"/visible", json::array(), "visible has 0 rows where there are 4"},
        std::tuple{"/tokens_of", json::array(), "not a number for each chunk"},
        std::tuple{"/name", json(5), "a key is missing"}, std::tuple{"/problem/mask", json(), "a key is missing"}})
    expect_refused(changed(pointer, value), reason);
}

TEST_F(Show, IsOneSmallFileThatAsksNothingOfTheNetwork) {
  shown("--ranks 1 --grid ring --tokens 1");
  std::string page = text_of(page_);
  EXPECT_LT(page.size(), 400'000u);
  const std::string svg = "http://www.w3.org/2000/svg";  // a name, not an address
  page.erase(page.find(svg), svg.size());
  for (const char* word : {"http://", "https://", "src=", "@import", "url(http", "url(\"", "fetch(", "XMLHttp"})
    EXPECT_EQ(page.find(word), std::string::npos) << word << " at " << page.substr(page.find(word), 80);
  EXPECT_NE(page.find("default-src 'none'; script-src 'sha256-"), std::string::npos);
  for (const char* place : {"{{", "/*STYLE*/", "/*SCRIPT*/", "/*DATA*/"})
    EXPECT_EQ(page.find(place), std::string::npos) << place << " was not filled";
}

TEST_F(Show, SaysWhatOfARecordIsNoRow) {
  folder_.write("run/metrics.jsonl",
                "{\"step\":1,\"loss\":2}\ngarbage\n\n{\"step\":2,\"loss\":NaN}\n{\"step\":3,\"loss\": -Infinity}\n"
                "{\"step\":4,\"lo");
  const json run = shown(folder_.path("run"))["runs"][0];
  EXPECT_EQ(run["step"], (json{1, 2, 3}));
  EXPECT_EQ(run["loss"], (json{2, nullptr, nullptr})) << "gaps, not points that are joined";
  EXPECT_EQ(run["unread"], 1);
  folder_.write("run/metrics.jsonl", "garbage\nmore\n");
  fs::remove(page_);
  expect_refused(folder_.path("run"), "none of its lines is a row with a step");
}

TEST_F(Show, TellsThingsOfOneNameApart) {
  for (const char* name : {"a", "b"})
    folder_.write(cat(name, "/metrics.jsonl"), "{\"step\":0,\"kind\":\"run\",\"name\":\"same\"}\n");
  const json runs = shown(cat(folder_.path("a"), " ", folder_.path("b")))["runs"];
  EXPECT_EQ(runs[0]["name"], cat("same (", folder_.path("a"), ")"));
  EXPECT_EQ(runs[1]["name"], cat("same (", folder_.path("b"), ")"));
}

TEST_F(Show, TextsStayTexts) {
  const std::string hostile = "</script><!--<script>alert(1)</script>\xff \xe2\x80\xa8 \"'&";
  const std::string page = cli::make_page({{"runs", {{{"name", hostile}}}}}, hostile);
  const std::string again = cli::make_page({{"runs", {{{"name", "plain"}}}}}, "plain");
  const auto count = [](const std::string& text, const std::string& word) {
    size_t found = 0;
    for (size_t at = text.find(word); at != std::string::npos; at = text.find(word, at + 1)) ++found;
    return found;
  };
  for (const char* word : {"<script", "</script", "<!--", "<"})
    EXPECT_EQ(count(page, word), count(again, word)) << word;
  EXPECT_EQ(data_of(page)["runs"][0]["name"], "</script><!--<script>alert(1)</script>\xef\xbf\xbd \xe2\x80\xa8 \"'&");
}

TEST(Base64, IsAsOthersHaveIt) {
  for (const auto& [bytes, text] :
       {std::pair{"", ""}, std::pair{"f", "Zg=="}, std::pair{"fo", "Zm8="}, std::pair{"foo", "Zm9v"},
        std::pair{"foob", "Zm9vYg=="}, std::pair{"\xff\xfe", "//4="}})
    EXPECT_EQ(cli::base64(bytes), text);
}

// Two ranks: a step of each, an attend with a turn and a wait in it, and a message.
std::string small_trace(const TempFolder& folder, const std::string& name, const json& about) {
  std::vector<std::string> texts;
  for (int rank = 0; rank < 2; ++rank) {
    RankTrace trace(rank);
    for (int step = 1; step <= 2; ++step) {
      const double at = 1000.0 * step;
      trace.add({"wait", TraceKind::wait, at + 110, at + 160, {"forward", 0, 3, "keys 1"}, 1 - rank, 64});
      trace.add({"attend", TraceKind::compute, at + 100, at + 400, {"forward", 0, 3, "query 0 x keys 1"}});
      trace.add({cat("step ", step), TraceKind::step, at, at + 500});
      trace.add_message(
          {.sent = true, .kind = "p2p", .peer = 1 - rank, .number = step, .bytes = 64, .posted_us = at + 50});
      trace.add_message({.kind = "p2p",
                         .peer = 1 - rank,
                         .number = step,
                         .bytes = 64,
                         .posted_us = at + 60,
                         .arrived_us = rank == 0 ? at + 155 : -1,
                         .read_us = at + 160,
                         .label = {"forward", 0, 2, "keys 1"}});
    }
    texts.push_back(trace_text(trace));
  }
  write_traces(folder.path(name), texts, about);
  return folder.path(name);
}

TEST_F(Show, LaysTracesOutInColumns) {
  const std::string file = small_trace(folder_, "trace.json",
                                       {{"source", "measured"}, {"name", "ring"}, {"wait_share", 0.1}, {"tokens", 7}});
  const json trace = shown(file)["traces"][0];
  EXPECT_EQ(trace["name"], "ring");
  EXPECT_EQ(trace["source"], "measured");
  EXPECT_EQ(trace["ranks"], 2);
  EXPECT_EQ(trace["wait_share"], 0.1);
  EXPECT_TRUE(trace["shortened"].is_null());
  EXPECT_EQ(trace["note"], "7 tokens");
  EXPECT_EQ(trace["t_us"], (json{0, 1500}));
  const auto name = [&](const json& place) { return trace["names"][place.get<int>()]; };
  ASSERT_EQ(trace["spans"][0].size(), 6u);
  // [start, duration, name, category, depth, pass, layer, plan_step, block, peer, bytes]
  const json &step = trace["spans"][0][0], &attend = trace["spans"][0][1], &wait = trace["spans"][0][2];
  EXPECT_EQ(name(step[2]), "step 1");
  EXPECT_EQ(step.size(), 5u) << "what is not known is left out";
  EXPECT_EQ((json{step[0], step[1], step[3], step[4]}), (json{0, 500, 0, 0}));
  EXPECT_EQ((json{attend[0], attend[1], attend[3], attend[4], attend[6], attend[7]}), (json{100, 300, 2, 1, 0, 3}));
  EXPECT_EQ(name(attend[5]), "forward");
  EXPECT_EQ(trace["blocks"][attend[8].get<int>()], "query 0 x keys 1");
  EXPECT_EQ((json{wait[0], wait[1], wait[3], wait[4], wait[9], wait[10]}), (json{110, 50, 4, 2, 1, 64}));
  ASSERT_EQ(trace["messages"].size(), 4u);
  int known = 0;
  for (const json& message : trace["messages"]) {
    EXPECT_EQ(name(message[2]), "p2p");
    EXPECT_LT(message[4], message[5]) << "sent, posted";
    EXPECT_LT(message[5], message[7]) << "posted, read";
    known += !message[6].is_null();
    EXPECT_EQ(message[6].is_null(), message[1] == 1) << "rank 1 does not know when it came";
  }
  EXPECT_EQ(known, 2);
}

TEST_F(Show, KeepsOneStepOfATraceTooLarge) {
  const std::string file = small_trace(folder_, "trace.json", {{"source", "measured"}, {"wait_share", 0.1}});
  const json trace = cli::trace_view(json::parse(text_of(file)), file, /*most_bytes=*/100);
  EXPECT_NE(trace["shortened"].get<std::string>().find("only step 2 is shown: the file has "), std::string::npos);
  EXPECT_EQ(trace["t_us"], (json{0, 500}));
  EXPECT_EQ(trace["messages"].size(), 2u);
  EXPECT_TRUE(trace["wait_share"].is_null()) << "of all steps";
  for (const json& spans : trace["spans"]) EXPECT_EQ(spans.size(), 3u);
}

TEST_F(Show, TakesTheTraceOfAnAttention) {
  const Ended ended =
      run_command(cat("attend --ranks 4 --grid startrail:2 --tokens 64 --heads 2 --dim 8 --repeat 1 --profile ",
                      folder_.path("trace.json")));
  ASSERT_EQ(ended.code, 0) << ended.text;
  const json trace = shown(folder_.path("trace.json"))["traces"][0];
  EXPECT_EQ(trace["name"], "startrail:2 on 4 ranks");
  EXPECT_EQ(trace["about"]["mask"], "causal");
  double waits = 0, steps = 0;
  for (const json& spans : trace["spans"]) {
    std::set<std::string> names;
    for (const json& span : spans) {
      names.insert(trace["names"][span[2].get<int>()]);
      if (span[3] == 0) steps += span[1].get<double>();
      if (span[3] == 4) waits += span[1].get<double>();
    }
    for (const char* name : {"forward", "backward", "attend", "gather", "merge"})
      EXPECT_TRUE(names.contains(name)) << name;
  }
  EXPECT_NEAR(waits / steps, trace["wait_share"], 0.01);
  for (const json& message : trace["messages"])
    for (int moment : {4, 5, 6, 7}) EXPECT_TRUE(message[moment].is_number()) << "every message knows both its ends";
  EXPECT_EQ(run_command(cat("attend --profile ", folder_.path("no/trace.json"))).code, 2);
}

// A run as today's trainer writes it, gone on with once, with steps that are no numbers.
std::string write_run(const TempFolder& folder) {
  std::string metrics =
      R"({"kind":"run","format":1,"step":0,"name":"mine","loss_unit":"nats a token","version":"0.1.0","estimated_bytes":900,"config":{"parallel.grid":"\"ring\"","train.tokens":"64"}})"
      "\n";
  for (int step = 1; step <= 40; ++step)
    metrics += cat("{\"step\":", step, ",\"loss\":", step == 7 ? "null" : fixed(5.0 / step + (step == 20 ? 9 : 0), 6),
                   ",\"seconds\":0.5,\"elapsed\":", step, ",\"tokens\":", 64 * step, ",\"peak_bytes\":1000}\n");
  metrics += R"({"step":30,"validation":1.25,"elapsed":30.5})"
             "\n"
             R"({"step":40,"loss":0.5,"seconds":1)";  // half a line
  folder.write("run/metrics.jsonl", metrics);
  folder.write("run/samples/step-00000030.json", R"({"prompt":"ab","text":"c</script>"})");
  folder.write("run/samples/step-00000040.png", "\x89PNG");
  folder.write("run/samples/notes.txt", "the user's own");
  return folder.path("run");
}

TEST_F(Show, HasRunsInColumns) {
  const json run = shown(write_run(folder_))["runs"][0];
  EXPECT_EQ(run["name"], "mine");
  EXPECT_EQ(run["estimated_bytes"], 900);
  EXPECT_EQ(run["config"], json::parse(R"([["parallel.grid", "\"ring\""], ["train.tokens", "64"]])"));
  ASSERT_EQ(run["step"].size(), 40u);
  EXPECT_TRUE(run["loss"][6].is_null());
  EXPECT_EQ(run["loss"][2], 1.6667);
  EXPECT_EQ(run["elapsed"][9], 10);
  EXPECT_EQ(run["tokens"][9], 640);
  EXPECT_TRUE(run["wait_share"][0].is_null()) << "not in the record";
  EXPECT_EQ(run["validation"], json::parse("[[30, 1.25, 30.5]]"));
  ASSERT_EQ(run["samples"].size(), 2u);
  EXPECT_EQ(run["samples"][0]["text"], "c</script>");
  EXPECT_EQ(run["samples"][1]["image"], "data:image/png;base64,iVBORw==");
  EXPECT_EQ(shown(folder_.path("run/metrics.jsonl"))["runs"][0]["step"].size(), 40u);
}

TEST_F(Show, ReadsRecordsOfOld) {
  folder_.write("old/metrics.jsonl", R"({"step":1,"loss":2,"seconds":3,"tokens_per_second":10}
{"step":1,"validation":5}
{"step":2,"loss":1,"seconds":4,"tokens_per_second":10}
{"step":2,"loss":1.5,"seconds":4,"tokens_per_second":10}
)");
  const json run = shown(folder_.path("old"))["runs"][0];
  EXPECT_EQ(run["name"], "old");
  EXPECT_EQ(run["loss"], (json{2, 1.5})) << "after resuming the later one counts";
  EXPECT_EQ(run["elapsed"], (json{3, 7}));
  EXPECT_EQ(run["tokens"], (json{30, 70}));
}

TEST_F(Show, ReadsRecordsWithOddLines) {
  folder_.write("odd/metrics.jsonl", R"({"step":0,"kind":5}
{"step":0,"kind":"run","format":1,"name":7,"loss_unit":[1],"config":3}
[]
{"step":"one","loss":1}
{"step":1,"loss":"much","elapsed":"long"}
{"step":2,"loss":3,"seconds":1}
)");
  folder_.write("odd/samples/step-00000001.json", R"({"prompt":5,"text":[]})");
  const json run = shown(folder_.path("odd"))["runs"][0];
  EXPECT_EQ(run["name"], "odd");
  EXPECT_EQ(run["loss_unit"], "nats a token");
  EXPECT_EQ(run["step"], (json{0, 1, 2}));
  EXPECT_EQ(run["loss"], (json{nullptr, nullptr, 3}));
  EXPECT_EQ(run["samples"][0], (json{{"step", 1}}));
  folder_.write("new/metrics.jsonl", R"({"step":0,"kind":"run","format":2})");
  fs::remove(page_);
  expect_refused(folder_.path("new"), "in another form");
}

TEST_F(Show, DrawsLossesInTheTerminal) {
  const Ended ended = run_command(cat("show --text ", write_run(folder_)));
  ASSERT_EQ(ended.code, 0) << ended.text;
  for (const char* part : {"mine (", "): loss, nats a token; o: validation", "9.250 |", "0.125 |", "o", "step 40"})
    EXPECT_NE(ended.text.find(part), std::string::npos) << part << " in\n" << ended.text;
  // The spike at step 20 is in the top row, in the middle.
  const std::string top = ended.text.substr(ended.text.find("9.250"),
                                            ended.text.find('\n', ended.text.find("9.250")) - ended.text.find("9.250"));
  EXPECT_NEAR(static_cast<double>(top.find("\xe2")), 7 + 68 * 19 / 39, 3) << top;
  EXPECT_EQ(run_command(cat("show --text --ranks 4 --grid ring ", folder_.path("run"))).code, 2);
  EXPECT_EQ(run_command(cat("show --text --out x.html ", folder_.path("run"))).code, 2);
  // Numbers whose difference is none, one step, a validation beyond the steps, a name that would colour the terminal.
  for (const char* lines :
       {"{\"step\":1,\"loss\":1e308}\n{\"step\":2,\"loss\":-1e308}\n", "{\"step\":1,\"loss\":2.5}\n",
        "{\"step\":1,\"loss\":2.5}\n{\"step\":50,\"validation\":1}\n",
        "{\"step\":0,\"kind\":\"run\",\"name\":\"\\u001b[31m\"}\n{\"step\":1,\"loss\":1}\n"}) {
    folder_.write("some/metrics.jsonl", lines);
    const Ended some = run_command(cat("show --text ", folder_.path("some")));
    EXPECT_EQ(some.code, 0) << some.text;
    EXPECT_EQ(some.text.find('\033'), std::string::npos);
  }
  folder_.write("none/metrics.jsonl", "");
  EXPECT_NE(run_command(cat("show --text ", folder_.path("none"))).text.find("no step has a loss"), std::string::npos);
}

TEST_F(Show, RefusesWhatItCannotShow) {
  expect_refused(folder_.path("nothing"), "does not exist");
  expect_refused(folder_.write("list.json", "[]"), "neither a plan");
  expect_refused(folder_.write("broken.json", "{\"traceEvents\": ["), "is no whole JSON");
  expect_refused(folder_.write("foreign.json", "{\"traceEvents\": []}"), "not one that this startrail wrote");
  expect_refused(folder_.write("half.json", R"({"otherData":{"kind":"trace","format":1},"traceEvents":[{"ph":"X"}]})"),
                 "no whole trace");
  // Whatever types a file has: a sentence, not a bug of ours.
  for (const char* text : {R"({"kind":5})", R"({"kind":"plan","format":"x"})", R"({"kind":"plan","format":1,"name":5})",
                           R"({"traceEvents":[],"otherData":7})", R"({"traceEvents":[],"otherData":{"kind":7}})",
                           R"({"traceEvents":5,"otherData":{"kind":"trace","format":1}})",
                           R"({"traceEvents":[{"ph":"X","pid":50000000}],"otherData":{"kind":"trace","format":1}})"})
    expect_refused(folder_.write("types.json", text), "types.json ");
  expect_refused(folder_.write("deep.json", std::string(300'000, '[')), "nested more deeply");
  expect_refused("/dev/null", "neither a file nor a folder");
  expect_refused(folder_.write("mine.json", "{}") + " --compare ring", "--compare goes with --ranks");
  fs::create_directory(folder_.path("empty"));
  expect_refused(folder_.path("empty"), "holds no run");
  const std::string own = folder_.write("own.json", run_command("plan --ranks 2 --grid ring --json").text);
  EXPECT_EQ(run_command(cat("show ", own, " --out ", own)).code, 2) << "would write over what it shows";
  EXPECT_EQ(json::parse(text_of(own))["ranks"], 2);
  // Nor anything else that is no page, such as the record of the run that is shown.
  const std::string record = folder_.write("run/metrics.jsonl", "{\"step\":1,\"loss\":2}\n");
  const Ended over = run_command(cat("show ", folder_.path("run"), " --out ", record));
  EXPECT_EQ(over.code, 2);
  EXPECT_NE(over.text.find("exists and is no page"), std::string::npos) << over.text;
  EXPECT_EQ(text_of(record), "{\"step\":1,\"loss\":2}\n");
  EXPECT_EQ(run_command(cat("show ", folder_.path("run"), " -o ", folder_.path("again.html"))).code, 0);
  EXPECT_EQ(run_command(cat("show ", folder_.path("run"), " -o ", folder_.path("again.html"))).code, 0) << "of a page";
  expect_refused("--ranks 16 --grid startrail:3", "startrail:3");
  EXPECT_EQ(run_command("show --ranks 2 --grid ring --out /no/such/page.html").code, 2);
  const Ended help = run_command("show");
  EXPECT_EQ(help.code, 0);
  EXPECT_NE(help.text.find("--compare"), std::string::npos);
}

}  // namespace
}  // namespace startrail

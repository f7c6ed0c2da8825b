// The command as users meet it: output, exit codes, and one clear sentence for every bad input.
#include <ATen/Parallel.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <nlohmann/json.hpp>
#include <string>

#include "startrail/base/text.h"
#include "startrail/run/kernel/cpu/cpu.h"
#include "tests/command.h"

namespace startrail {
namespace {

TEST(Command, AttendsAndReportsAsJson) {
  const Ended ended = run_command(
      "attend --ranks 16 --grid startrail:2 --tokens 256 --heads 4 --kv-heads 4 --dim 16 --mask causal "
      "--layout zigzag --dtype float32 --backward queries --threads 2 --repeat 1 --check --json");
  ASSERT_EQ(ended.code, 0) << ended.text;
  const auto json = nlohmann::json::parse(ended.text);
  EXPECT_EQ(json["grid"], (nlohmann::json{{"heads", 1}, {"team", 2}, {"ring", 4}, {"stripe", 2}}));
  const int64_t unit = 256 / 16 * 4 * 16 * 4;
  EXPECT_EQ(json["bytes"]["forward"]["p2p"]["max"], 12 * unit);
  EXPECT_EQ(json["bytes"], json["formula_bytes"]);
  for (const char* pass : {"forward", "backward"})
    for (const char* kind : {"p2p", "gather", "merge", "all_to_all"})
      for (const char* figure : {"max", "mean"}) EXPECT_TRUE(json["bytes"][pass][kind][figure].is_number());
  for (const char* key : {"forward_ms", "backward_ms", "single_ms"}) EXPECT_GT(json[key], 0) << key;
  for (const char* key : {"out", "dq", "dk", "dv"}) EXPECT_LT(json["error"][key], 3e-6) << key;
  EXPECT_GT(json["peak_bytes"]["max"], 0);
  EXPECT_EQ(json["work"]["min"], json["work"]["max"]);  // zigzag, 32 divides 256
  EXPECT_EQ(json["work"]["max"], 4 * 256 * 257 / 2 / 16);
  EXPECT_EQ(json["steps"]["forward"], 10);
}

TEST(Command, AttendsWithEveryKindOfMask) {
  for (const char* mask : {"--mask full --key-tokens 77 --layout contiguous", "--mask causal --documents 100,4,96",
                           "--window 50", "--mask full --window 3", "--prefix 20", "--padding 60"}) {
    const Ended ended = run_command(
        std::string("attend --ranks 6 --grid team=2 --tokens 200 --heads 2 --dim 8 --repeat 1 --check ") + mask);
    EXPECT_EQ(ended.code, 0) << ended.text;
    EXPECT_NE(ended.text.find("passed"), std::string::npos) << ended.text;
  }
}

// The level is chosen once in a process, by its environment.
TEST(Command, IsRightOnEveryLevelItCanBeForcedTo) {
  const auto at_level = [](const std::string& level, const std::string& arguments) {
    const char* chosen = getenv("STARTRAIL_ISA");
    const std::string before = chosen ? chosen : "";
    setenv("STARTRAIL_ISA", level.c_str(), 1);
    const Ended ended = run_process(arguments);
    if (chosen)
      setenv("STARTRAIL_ISA", before.c_str(), 1);
    else
      unsetenv("STARTRAIL_ISA");
    return ended;
  };
  for (const std::string& level : cpu::level_names()) {
    const Ended ended = at_level(level,
                                 "attend --ranks 4 --grid team=2 --tokens 300 --heads 4 --kv-heads 2 --dim 40 "
                                 "--kernel flash --repeat 1 --check --dtype bfloat16");
    EXPECT_EQ(ended.code, 0) << level << ": " << ended.text;
    EXPECT_EQ(nlohmann::json::parse(at_level(level, "doctor --json").text)["level"], level);
  }
  const auto doctor = nlohmann::json::parse(at_level("", "doctor --json").text);  // as if it were not set
  EXPECT_EQ(doctor["level"], cpu::level_names().front());
  EXPECT_EQ(doctor["levels"], nlohmann::json(cpu::level_names()));
  const auto still = nlohmann::json::parse(at_level("sse9", "doctor --json").text);  // is for finding out what is wrong
  EXPECT_EQ(still["level"], "none");
  EXPECT_NE(still["missing"].dump().find("STARTRAIL_ISA=sse9 is not a level of this processor"), std::string::npos);
  const Ended refused = at_level("sse9", "attend --ranks 1 --grid ring --tokens 64 --repeat 1");
  EXPECT_EQ(refused.code, 2);
  EXPECT_NE(refused.text.find("STARTRAIL_ISA=sse9 is not a level of this processor"), std::string::npos)
      << refused.text;
}

TEST(Command, MeasuresTheKernelBesidePyTorchs) {
  const Ended ended =
      run_command("bench kernel --tokens 100 --dims 32 --masks causal,window:9 --threads 1 --rounds 2 --json");
  ASSERT_EQ(ended.code, 0) << ended.text;
  const auto json = nlohmann::json::parse(ended.text);
  EXPECT_EQ(json["level"], cpu::level().name);
  ASSERT_EQ(json["results"].size(), 2u);
  EXPECT_EQ(json["results"][0]["mask"], "causal");
  EXPECT_EQ(json["results"][1]["mask"], "window 9");
  const auto pairs = [](int64_t window) { return (100 - window) * window + window * (window + 1) / 2; };
  for (size_t i = 0; i < 2; ++i)
    for (const char* pass : {"forward", "backward"}) {
      const auto& result = json["results"][i][pass];
      const double ms = result["ms"], rate = result["gflops"], work = 4.0 * 4 * 32 * pairs(i == 0 ? 100 : 9);
      EXPECT_NEAR(result["ratio"], result["pytorch_ms"].get<double>() / ms, 1e-9);
      EXPECT_NEAR(rate, work * (*pass == 'b' ? 2.5 : 1) / ms / 1e6, 1e-6 * rate);
      EXPECT_NEAR(result["share_of_gemm"], rate / json["results"][i]["gemm_gflops"].get<double>(), 1e-9);
      EXPECT_LE(result["best_ms"], ms);
    }
}

TEST(Command, ShowsAndProvesPlans) {
  const Ended shown = run_command("plan --ranks 16 --grid startrail:2 --rank 3 --check --ranks-per-node 8");
  EXPECT_EQ(shown.code, 0) << shown.text;
  for (const char* part :
       {"4 concentric rings of 4", "0 -> 2 -> 4 -> 6 -> 0", "gather query 3 -> query 2,3 over 2:2 3:3", "proved",
        "0.534", "leaves its node", "held by a rank"})
    EXPECT_NE(shown.text.find(part), std::string::npos) << part << " in\n" << shown.text;
  const Ended json = run_command("plan --ranks 8 --grid usp:2 --json");
  ASSERT_EQ(json.code, 0) << json.text;
  const auto parsed = nlohmann::json::parse(json.text);
  EXPECT_EQ(parsed["passes"].size(), 3u);
  EXPECT_EQ(parsed["passes"][0]["ranks"].size(), 8u);
  for (const auto& pass : parsed["passes"])
    for (const char* key : {"peak_bytes", "ring_peak_bytes"}) EXPECT_GT(pass[key], 0) << key;
  EXPECT_EQ(nlohmann::json::parse(run_command("plan --check --all 6 --json").text)["most_ranks"], 6);
  const Ended all = run_command("plan --check --all 12");
  EXPECT_EQ(all.code, 0) << all.text;
  EXPECT_NE(all.text.find("every grid of 1 to 12 ranks"), std::string::npos) << all.text;
}

TEST(Command, DerivesMemoryFromPlans) {
  // The ring holds q and its own, the visiting, the arriving and the last k and v; out and lse in float32.
  const int64_t unit = 4096 / 16 * 8 * 64, stat = unit / 64 * 4;
  const auto forward = nlohmann::json::parse(run_command("plan --grid ring --dtype bfloat16 --json").text)["passes"][0];
  EXPECT_EQ(forward["peak_bytes"], unit * 2 * (1 + 4 * 2) + unit * 4 + stat);
  EXPECT_EQ(forward["peak_bytes"], forward["ring_peak_bytes"]);
  // A team holds its queries beside the own ones, twice the outputs, and blocks of two chunks of k and v.
  const Ended team = run_command("plan --grid startrail:2 --dtype bfloat16");
  EXPECT_NE(team.text.find("forward           5.52 MB  2.89 MB      1.909"), std::string::npos) << team.text;
}

TEST(Command, HelpsEverywhere) {
  for (const char* arguments : {"", "--help", "attend --help", "plan --help", "doctor --help", "train --help",
                                "sample --help", "evaluate --help", "export --help"}) {
    const Ended ended = run_command(arguments);
    EXPECT_EQ(ended.code, 0) << arguments;
    EXPECT_NE(ended.text.find("startrail "), std::string::npos) << ended.text;
  }
  EXPECT_NE(run_command("attend --help").text.find("Examples:"), std::string::npos);
  EXPECT_NE(run_command("--version").text.find("startrail "), std::string::npos);
  const Ended doctor = run_command("doctor --json");
  EXPECT_EQ(nlohmann::json::parse(doctor.text)["torch"].get<std::string>().substr(0, 2), "2.");
}

// What a function cannot show: the program's own exit codes and streams.
TEST(Command, IsAProgram) {
  const Ended version = run_process("--version");
  EXPECT_EQ(version.code, 0);
  EXPECT_EQ(version.text, run_command("--version").text);
  const Ended refused = run_process("attend --mask diagonal");
  EXPECT_EQ(refused.code, 2);
  EXPECT_EQ(refused.text, run_command("attend --mask diagonal").text);
  EXPECT_EQ(run_process("attend --mask diagonal 2>/dev/null").text, "");
  const Ended full = run_process("plan --json >/dev/full");
  EXPECT_EQ(full.code, 3);
  EXPECT_EQ(full.text, "startrail: the output could not be written\n");
}

// A call leaves nothing behind that the next would meet.
TEST(Command, RunsAgainAfterAnyError) {
  const int threads = at::get_num_threads();
  const Ended first = run_command("plan --ranks 4 --grid ring");
  EXPECT_EQ(run_command("plan --rank 16").code, 2);
  EXPECT_EQ(run_command("plan --json --nonsense").code, 2);
  EXPECT_EQ(run_command("attend --ranks 2 --grid ring --tokens 64 --heads 1 --repeat 1 --threads 7").code, 0);
  EXPECT_EQ(run_command("plan --ranks 4 --grid ring").text, first.text);
  EXPECT_EQ(at::get_num_threads(), threads);
}

TEST(Command, AnswersEveryBadInputWithOneSentenceAndExit2) {
  const std::pair<const char*, const char*> cases[] = {
      {"attend --grid startrail:3",
       "startrail:3 does not fit 16 ranks: C*C must divide the ranks; valid on 16 ranks: "
       "startrail:1, startrail:2, startrail:4"},
      {"attend --grid team=0", "team 0 does not fit 16 ranks: it must divide 16; valid: 1, 2, 4, 8, 16"},
      {"attend --grid team=3", "the product must be equal"},
      {"attend --grid spiral", "grid 'spiral' is not known; valid grids: ring, startrail:C"},
      {"attend --grid ulysses --heads 8", "heads axis 16 does not fit 8 heads with 8 key/value heads"},
      {"attend --heads 8 --kv-heads 3", "3 key/value heads do not divide 8 heads; valid key/value heads: 1, 2, 4, 8"},
      {"attend --tokens 0", "0 tokens cannot be split: give 1 or more"},
      {"attend --tokens -5", "-5 tokens cannot be split"},
      {"attend --kv-heads 0", "0 key/value heads cannot be computed: give 1 to 1024"},
      {"plan --heads 4294967304", "4294967304 heads cannot be computed: give 1 to 1024"},
      {"plan --tokens 9223372036854775807", "tokens cannot be computed: give 1 to 4294967296"},
      {"attend --documents 9223372036854775807,9223372036854775807,66", "is not possible: give lengths of 1 to 4096"},
      {"attend --dtype float64 --partial bfloat16", "partial bfloat16 does not go with dtype float64"},
      {"attend --threads 100000", "100000 threads cannot run: give 1 to 1024"},
      {"plan --rank -1", "rank -1 is not one of 16"},
      {"plan --ranks-per-node 0", "0 ranks per node do not fit 16 ranks"},
      {"plan --check --all 8 --grid ring", "leave out --grid"},
      {"attend --tokens many", "--tokens"},
      {"attend --ranks 0", "0 ranks cannot run: give 1 to 4096"},
      {"attend --mask diagonal", "mask 'diagonal' is not known; valid masks: full, causal"},
      {"attend --documents 10,20", "documents add up to 30 tokens, but there are 4096"},
      {"attend --documents 10,x", "document length 'x' is not a whole number"},
      {"attend --mask full --prefix 5", "prefix 5 has no meaning with mask full"},
      {"attend --prefix 5 --window 3", "prefix 5 cannot be joined with a window or documents"},
      {"attend --window -1", "window -1 is negative"},
      {"attend --padding 4096", "padding 4096 does not fit 4096 tokens"},
      {"attend --key-tokens 100", "needs as many keys as queries"},
      {"attend --layout spiral", "layout 'spiral' is not known; valid layouts: contiguous, zigzag, striped"},
      {"attend --dtype float16", "dtype 'float16' is not known; valid: float32, bfloat16, float64"},
      {"attend --partial int8", "partial 'int8' is not known"},
      {"attend --backward sideways", "backward 'sideways' is not known; valid: auto, keys, queries"},
      {"attend --repeat 0", "repeat 0 measures nothing"},
      {"attend --threads -1", "-1 threads cannot run"},
      {"attend --dim 0", "0 numbers a head cannot be computed"},
      {"attend --kernel fast", "kernel 'fast' is not known; valid kernels: auto, flash, aten, reference"},
      {"bench kernel --types half", "type 'half' is not known; valid: float32, bfloat16"},
      {"bench kernel --masks diagonal", "mask 'diagonal' is not known; valid masks: full, causal, window:N, N from 1"},
      {"bench kernel --masks window:0", "mask 'window:0' is not known"},
      {"bench kernel --heads 4 --kv-heads 3", "kv-heads divide heads"},
      {"attend --speed", "--speed"},
      {"plan --rank 16", "rank 16 is not one of 16: give 0 to 15"},
      {"plan --all 8", "--all goes with --check"},
      {"plan --check --all 0", "--all 0 is not possible"},
      {"plan --ranks-per-node 17", "17 ranks per node do not fit 16 ranks"},
      {"dance", "dance"},
  };
  for (const auto& [arguments, expected] : cases) {
    const Ended ended = run_command(arguments);
    EXPECT_EQ(ended.code, 2) << arguments << "\n" << ended.text;
    EXPECT_NE(ended.text.find(expected), std::string::npos) << arguments << "\n" << ended.text;
    EXPECT_EQ(std::count(ended.text.begin(), ended.text.end(), '\n'), 1) << arguments << "\n" << ended.text;
    EXPECT_EQ(ended.text.rfind("startrail: ", 0), 0u) << ended.text;
  }
}

}  // namespace
}  // namespace startrail

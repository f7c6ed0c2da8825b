// Training as users meet it: what it prints, writes and refuses, and how it stops.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <fstream>
#include <nlohmann/json.hpp>
#include <thread>

#include "startrail/base/testing.h"
#include "startrail/train/data/tokens/testing.h"
#include "startrail/train/loop/checkpoint.h"
#include "startrail/train/loop/settings.h"
#include "tests/command.h"
#include "tests/training.h"

namespace startrail {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

// A small model on made-up text, in a folder of its own.
class TrainCommand : public testing::Test {
 protected:
  TrainCommand() {
    small_config(folder_);
    folder_.write("config.toml", cat("[model]\ndim = 64\nlayers = 1\nheads = 4\nhidden = 96\n[data]\npath = \"",
                                     folder_.path("data"), "\"\n[train]\ntokens = 128\nsteps = 6\n[run]\nfolder = \"",
                                     run_folder(), "\"\n[validate]\nwindows = 2\n"));
  }
  std::string run_folder() const { return folder_.path("run"); }
  std::string train(const std::string& more = "") const {
    return cat("train ", folder_.path("config.toml"), " ", more);
  }

  TempFolder folder_;
};

void expect_parts(const Ended& ended, int code, const std::vector<std::string>& parts) {
  EXPECT_EQ(ended.code, code) << ended.text;
  for (const std::string& part : parts)
    EXPECT_NE(ended.text.find(part), std::string::npos) << part << " in\n" << ended.text;
}

TEST_F(TrainCommand, ShowsProgressSummaryAndWritesTheRun) {
  const Ended ended = run_command(
      train("--set parallel.ranks=4 --set parallel.grid=startrail:2 --profile " + folder_.path("trace.json")));
  expect_parts(
      ended, 0,
      {"parameters: 1 layers, dim 64", "4 on", "startrail:2", "step 6/6  loss", "val ", "tok/s", "waiting", "ETA",
       "done:", "validation loss", "best unigram model", "trigram", "ring would have sent", "checkpoint", "sample"});
  std::ifstream metrics(fs::path(run_folder()) / "metrics.jsonl");
  int64_t lines = 0;
  std::string first;
  std::getline(metrics, first);
  const json head = json::parse(first);
  EXPECT_EQ(head["kind"], "run");
  EXPECT_EQ(head["name"], "run");
  EXPECT_EQ(head["loss_unit"], "nats a token");
  EXPECT_EQ(head["config"]["parallel.grid"], "\"startrail:2\"");
  EXPECT_FALSE(head["config"].contains("train.clip")) << "as it is by default";
  EXPECT_GT(head["estimated_bytes"], 0);
  double elapsed = 0;
  for (std::string line; std::getline(metrics, line);) {
    const json step = json::parse(line);
    EXPECT_GE(step["elapsed"], elapsed);
    elapsed = step["elapsed"];
    if (step.contains("validation")) continue;
    EXPECT_EQ(step["tokens"], step["step"].get<int64_t>() * 128);
    EXPECT_EQ(step["step"], ++lines);
    for (const char* key :
         {"loss", "gradient_norm", "learning_rate", "tokens_per_second", "peak_bytes", "attention_bytes"})
      EXPECT_GT(step[key], 0) << key;
  }
  EXPECT_EQ(lines, 6);
  // The resolved configuration reads back as the run had it.
  TrainConfig config;
  read_toml(settings_of(config), fs::path(run_folder()) / "config.toml");
  EXPECT_EQ(config.parallel.ranks, 4);
  EXPECT_EQ(config.train.tokens, 128);
  // The trace has work and transfers of every rank.
  std::ifstream file(folder_.path("trace.json"));
  std::map<int, std::set<std::string>> work;
  std::map<int, int> transfers;
  const json trace = json::parse(file);
  double waiting = 0, steps = 0;
  for (const json& event : trace["traceEvents"]) {
    if (event["ph"] == "X") work[event["pid"]].insert(event["name"]);
    if (event["ph"] == "b") ++transfers[event["pid"]];
    if (event.value("cat", "") == "step") steps += event["dur"].get<double>();
  }
  // Waits within steps are what the steps counted.
  for (const json& wait : trace["traceEvents"])
    if (wait.value("cat", "") == "wait")
      for (const json& step : trace["traceEvents"])
        if (step.value("cat", "") == "step" && step["pid"] == wait["pid"] && step["ts"] <= wait["ts"] &&
            wait["ts"].get<double>() < step["ts"].get<double>() + step["dur"].get<double>())
          waiting += wait["dur"].get<double>();
  EXPECT_NEAR(waiting / steps, trace["otherData"]["wait_share"], 0.01);
  EXPECT_EQ(trace["otherData"]["steps"], (json{1, 3}));
  EXPECT_EQ(trace["otherData"]["comm"], "local");
  for (int rank = 0; rank < 4; ++rank) {
    for (const char* name : {"forward", "backward", "optimizer", "attend", "gather", "merge"})
      EXPECT_TRUE(work[rank].contains(name)) << rank << name;
    EXPECT_GT(transfers[rank], 10);
  }

  expect_parts(run_command(train()), 2, {"already holds a run", "--resume"});
  expect_parts(run_command("train --resume " + run_folder()), 2, {"at step 6", "train.steps"});
  expect_parts(run_command(cat("train --resume ", run_folder(),
                               " --set train.steps=8 --set parallel.ranks=2 --set parallel.grid=auto")),
               0, {"from step 6", "step 8/8"});
  folder_.write("data/0.txt", "other text\n");
  expect_parts(run_command(cat("train --resume ", run_folder(), " --set train.steps=9")), 2, {"is not what it was"});
  expect_parts(run_command(cat("train --resume ", run_folder(), " --set train.steps=9 --set data.allow_changed=true")),
               0, {"step 9/9"});
}

TEST_F(TrainCommand, SamplesEvaluatesAndExports) {
  ASSERT_EQ(run_command(train()).code, 0);
  const std::string sample = cat("sample --checkpoint ", run_folder(), " --prompt 'line ' --tokens 40 ");
  const Ended one = run_command(sample + "--seed 1"), again = run_command(sample + "--seed 1"),
              other = run_command(sample + "--seed 2");
  EXPECT_EQ(one.code, 0) << one.text;
  EXPECT_EQ(one.text, again.text);
  EXPECT_NE(one.text, other.text);
  EXPECT_TRUE(one.text.starts_with("line "));
  EXPECT_EQ(one.text.size(), 5u + 40 + 1);
  EXPECT_EQ(run_command(sample + "--temperature 0").text, run_command(sample + "--top-k 1 --seed 9").text);
  expect_parts(run_command(sample + "--top-p 0"), 2, {"top-p 0"});
  expect_parts(run_command(cat("sample --checkpoint ", run_folder(), " --tokens 1000000000000000")), 2,
               {"--tokens 1000000000000000 need", "or fewer"});
  const std::string evaluate = cat("evaluate --checkpoint ", run_folder(), " ");
  expect_parts(run_command(evaluate + "--buckets 129"), 2, {"--buckets 129 are more than the 128 tokens"});
  expect_parts(run_command(evaluate + "--tokens -1"), 2, {"--tokens"});
  expect_parts(run_command(evaluate + "--windows -1"), 2, {"--windows"});
  expect_parts(run_command("sample --checkpoint " + folder_.path("data")), 2, {"nor a run's complete checkpoint"});

  const Ended evaluated = run_command(cat("evaluate --checkpoint ", run_folder(), " --buckets 4 --json"));
  ASSERT_EQ(evaluated.code, 0) << evaluated.text;
  const json result = json::parse(evaluated.text);
  ASSERT_EQ(result["by_position"].size(), 4u);
  double mean = 0;
  for (double loss : result["by_position"]) mean += loss / 4;
  EXPECT_NEAR(mean, result["loss"].get<double>(), 1e-3);

  const std::string out = folder_.path("exported");
  expect_parts(run_command(cat("export --checkpoint ", run_folder(), " --out ", out, " --dtype bfloat16")), 0,
               {"LlamaForCausalLM"});
  expect_parts(run_command(cat("export --checkpoint ", run_folder(), " --out ", out)), 2, {"not empty"});
  expect_parts(run_command(cat("sample --checkpoint ", out, " --prompt 'line '")), 0, {"line "});
  expect_parts(run_command(train(cat("--from ", out, " --set run.folder=", folder_.path("second"), " --json"))), 0,
               {"\"losses\""});
}

TEST_F(TrainCommand, DryRunsAndRefusesWhatDoesNotFit) {
  const Ended dry = run_command(train("--set parallel.ranks=8 --dry-run"));
  expect_parts(dry, 0, {"memory", "a rank", "a step", "ring:", "nothing was trained"});
  EXPECT_FALSE(fs::exists(run_folder()));
  const json numbers = json::parse(run_command(train("--set parallel.ranks=8 --dry-run --json")).text);
  EXPECT_GT(numbers["memory_bytes"]["rank"], 0);
  EXPECT_GT(numbers["memory_bytes"]["process"], 50'000'000);
  expect_parts(dry, 0, {"\nprocess   ", " besides, for the program and libtorch, once for all ranks\n"});
  const std::string crowd = "--dry-run --set parallel.threads=1 --set parallel.ranks=";
  EXPECT_EQ(run_command(train(crowd + "8")).text.find("warning"), std::string::npos);
  expect_parts(
      run_command(train(crowd + "16")), 0,
      {"startrail: warning: 16 ranks share 1 thread, more than 8 to each: expect about 1/1.6 of the speed of 8"});
  EXPECT_LT(numbers["step_bytes"]["attention"], numbers["step_bytes"]["ring_attention"]);
  // 40 GB of a sparse token file cost nothing to open, but a sequence of all of it does not fit.
  const std::string big = folder_.write("big.bin", "");
  fs::resize_file(big, int64_t{40} << 30);
  expect_parts(run_command(train(cat("--set data.path=", big, " --set train.tokens=10000000000 --dry-run"))), 2,
               {"this run needs about", "train.tokens=", "would fit"});
}

TEST_F(TrainCommand, ItsOwnOutputIsNotItsData) {
  // The run, an exported model and a trace's folder all lie among the data.
  const std::string run = folder_.path("data/runs/one"), more = cat("--set run.folder=", run, " ");
  ASSERT_EQ(run_command(train(more)).code, 0);
  ASSERT_EQ(run_command(cat("export --checkpoint ", run, " --out ", folder_.path("data/my-model"))).code, 0);
  expect_parts(run_command(cat("train --resume ", run, " --set train.steps=7")), 0,
               {"(2 runs or models left out)", "step 7/7"});
  expect_parts(run_command(train("--set run.folder=" + folder_.path("data"))), 2, {"is data.path too"});
}

TEST_F(TrainCommand, FindsTheRunOfACheckpoint) {
  ASSERT_EQ(run_command(train("--set run.save_every=4")).code, 0);
  const std::string early = run_folder() + "/checkpoints/step-00000004", copy = folder_.path("a/copy/step-00000004");
  fs::create_directories(folder_.path("a/copy"));
  fs::copy(early, copy);
  ASSERT_EQ(run_command(train("--set run.folder=" + folder_.path("other"))).code, 0);
  const auto resume = [&](const std::string& checkpoint, const std::string& more) {
    return run_command(cat("train --resume ", checkpoint, " ", more));
  };
  // One that lies in no run is of none, and never goes on in another one's folder.
  expect_parts(resume(copy, ""), 2, {run_folder(), "already holds a run", "is not of it", "set run.folder"});
  expect_parts(resume(early, "--set run.folder=" + folder_.path("other")), 2, {"other already holds a run"});
  expect_parts(resume(copy, "--set run.folder=" + folder_.path("new")), 0, {"from step 4", "new/checkpoints"});
  EXPECT_FALSE(fs::exists(folder_.path("a/checkpoints")));
  // A slash at its end changes nothing.
  expect_parts(resume(early + "/", "--set train.steps=5"), 0, {"from step 4", "run/checkpoints/step-00000005"});
  EXPECT_FALSE(fs::exists(run_folder() + "/checkpoints/step-00000006"));
}

TEST_F(TrainCommand, GoesOnOnlyAsItWas) {
  ASSERT_EQ(run_command(train()).code, 0);
  const auto resume = [&](const std::string& sets) {
    std::string command = cat("train --resume ", run_folder(), " --set train.steps=8");
    for (const std::string& set : split(sets, ' ')) command += " --set " + set;
    return run_command(command);
  };
  expect_parts(resume("model.dim=128"), 2, {"model.dim = 128", "has, 64"});
  expect_parts(resume("train.tokens=64"), 2, {"train.tokens is 64 and was 128", "--from"});
  expect_parts(resume("train.seed=5"), 2, {"train.seed is 5 and was 1"});
  expect_parts(resume("data.validation=0.5"), 2, {"data.validation is 0.5 and was 0.05"});
  expect_parts(resume("train.batch=2"), 0, {"step 8/8"});
  // Changed data is accepted once, not for ever.
  folder_.write("data/0.txt", "other text\n");
  expect_parts(resume("train.steps=9 data.allow_changed=true"), 0, {"step 9/9"});
  folder_.write("data/1.txt", "other text again\n");
  expect_parts(resume("train.steps=10"), 2, {"is not what it was"});
  expect_parts(run_command(cat("evaluate --checkpoint ", run_folder(), " --tokens 16")), 0, {"warning: the data in"});
}

TEST_F(TrainCommand, StretchesAModelItStartsFrom) {
  ASSERT_EQ(run_command(train()).code, 0);
  const std::string from = cat("--from ", run_folder(), "/checkpoints/latest --set run.folder=", folder_.path("long"));
  expect_parts(run_command(train(from + " --set model.hidden=100")), 2, {"model.hidden = 100", "only rope_"});
  expect_parts(run_command(train(from + " --set model.preset=gpt-1b")), 2, {"model.preset gpt-1b", "leave it out"});
  expect_parts(
      run_command(train(from + " --set train.tokens=256 --set model.rope_scaling=yarn --set model.rope_factor=2")), 0,
      {"step 6/6"});
  std::ifstream file(fs::path(find_checkpoint(folder_.path("long"))) / "config.json");
  const json config = json::parse(file);
  EXPECT_EQ(config["rope_parameters"]["rope_type"], "yarn");
  EXPECT_EQ(config["rope_parameters"]["original_max_position_embeddings"], 128);
  EXPECT_EQ(config["max_position_embeddings"], 256);
  TrainConfig saved;
  read_toml(settings_of(saved), fs::path(folder_.path("long")) / "config.toml");
  EXPECT_EQ(saved.model.rope_scaling, "yarn");
  EXPECT_EQ(saved.model.kv_heads, 4);
}

TEST_F(TrainCommand, DryRunFindsWhatWouldFailLater) {
  ASSERT_EQ(run_command(train()).code, 0);
  const auto dry = [&](const std::string& more) { return run_command(cat("train --dry-run ", more)); };
  const std::string config = folder_.path("config.toml"), fresh = cat(" --set run.folder=", folder_.path("new"), " ");
  folder_.write("empty/config.json", "");
  fs::copy_file(find_checkpoint(run_folder()) / "config.json", folder_.path("empty/config.json"),
                fs::copy_options::overwrite_existing);
  expect_parts(dry(cat(config, fresh, "--from ", folder_.path("empty"))), 2, {"holds no weights"});
  expect_parts(dry(cat(config, " --set run.folder=/proc/nowhere/run")), 2, {"/proc/nowhere/run cannot be written"});
  folder_.write("file", "");
  expect_parts(dry(cat(config, " --set run.folder=", folder_.path("file"))), 2, {"cannot be written"});
  for (const char* how : {"--dry-run", ""})
    expect_parts(run_command(train(cat(fresh, how, " --profile ", folder_.path("no/such/trace.json")))), 2,
                 {"--profile", "trace.json cannot be written"});
  EXPECT_FALSE(fs::exists(folder_.path("new")));
  folder_.write("t.bin", token_bytes(std::vector<uint16_t>(3000, 1)));
  expect_parts(dry(cat(config, fresh, "--set data.path=", folder_.path("t.bin"))), 0, {"token ids are when"});

  const fs::path weights = find_checkpoint(run_folder()) / "model.safetensors";
  expect_parts(dry(cat("--resume ", run_folder(), " --set train.steps=9")), 0, {"the checkpoint were checked"});
  std::fstream damaged(weights, std::ios::in | std::ios::out | std::ios::binary);
  damaged.seekp(static_cast<int64_t>(fs::file_size(weights)) - 9);
  damaged.put('\x55');
  damaged.close();
  expect_parts(dry(cat("--resume ", run_folder(), " --set train.steps=9")), 2, {"model.safetensors is damaged"});
}

// Weights come from a run's folder, a checkpoint or an exported model, and are never damaged, of other tokens or NaN.
TEST_F(TrainCommand, StartsOnlyFromSoundWeights) {
  expect_parts(run_command(train("--set model.vocabulary=300")), 0, {"step 6/6"});
  const std::string from =
      cat("train --from ", run_folder(), " --set train.steps=1 --set run.folder=", folder_.path("new"),
          " --set train.tokens=128 --set data.path=");
  expect_parts(run_command(from + folder_.path("data")), 2, {"the data is text", "a vocabulary of 300 tokens"});
  folder_.write("t.bin", token_bytes(std::vector<uint16_t>(3000, 299)));
  expect_parts(run_command(from + folder_.path("t.bin")), 0, {"step 1/1"});
  expect_parts(run_command(cat("evaluate --checkpoint ", run_folder(), " --data ", folder_.path("data"))), 2,
               {"the data is text"});
  expect_parts(run_command(cat("evaluate --checkpoint ", run_folder())), 0, {"nats a token"});  // what it learned
  expect_parts(run_command(cat("sample --checkpoint ", run_folder(), " --prompt 1,999")), 2,
               {"startrail: token 999 of the prompt"});

  ASSERT_EQ(run_command(cat("export --checkpoint ", run_folder(), " --out ", folder_.path("out"))).code, 0);
  const auto damage = [](const fs::path& file) {
    std::fstream out(file, std::ios::in | std::ios::out | std::ios::binary);
    out.seekp(static_cast<int64_t>(fs::file_size(file)) - 4);
    out.write("\0\0\xc0\x7f", 4);  // NaN
  };
  damage(folder_.path("out/model.safetensors"));
  fs::remove_all(folder_.path("new"));
  for (const std::string& command :
       {cat("train --from ", folder_.path("out"), " --set train.tokens=128 --set data.path=", folder_.path("t.bin"),
            " --set run.folder=", folder_.path("new")),
        cat("sample --checkpoint ", folder_.path("out"), " --prompt 1")})
    expect_parts(run_command(command), 2, {"holds NaN or infinities"});
  damage(find_checkpoint(run_folder()) / "model.safetensors");
  expect_parts(run_command(from + folder_.path("t.bin")), 2, {"model.safetensors is damaged"});
}

TEST_F(TrainCommand, NeverEndsWellWithoutANumber) {
  expect_parts(run_command(train("--set train.learning_rate=1000 --set train.clip=0 --set train.warmup=0 --set "
                                 "train.precision=float32 --set train.weight_decay=1000 --set train.steps=4")),
               2, {"diverged at step", "did not recover", "lower train.learning_rate"});
}

// Weights so large that the loss overflows at once: what is shown says so, and never "nan".
TEST_F(TrainCommand, SaysThatItDiverged) {
  const Ended ended = run_command(
      train("--set train.learning_rate=1000 --set train.clip=0 --set train.warmup=0 --set "
            "train.precision=float32 --set train.weight_decay=1000 --set train.steps=12 --set validate.every=6"));
  expect_parts(ended, 2,
               {"\nthe loss is no longer a number: the run diverged at step ", "loss not a number",
                "startrail: the loss is no longer a number: the run diverged at step ",
                " and did not recover in 5 steps; lower train.learning_rate"});
  EXPECT_EQ(ended.text.find("nan"), std::string::npos) << ended.text;
}

TEST_F(TrainCommand, ExplainsEverySetting) {
  TrainConfig config;
  const Ended ended = run_command("train --help-config");
  EXPECT_EQ(ended.code, 0);
  // Each has a paragraph that begins with its name, and what it is for, wrapped.
  std::map<std::string, std::string> explained;
  std::istringstream lines("\n" + ended.text);
  std::string name;
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    std::string word;
    if (line.starts_with("  ") && line[2] != ' ') words >> name;
    while (words >> word) explained[name] += " " + word;
  }
  for (const Setting& setting : settings_of(config))
    EXPECT_NE(explained[setting.name].find(" " + setting.help), std::string::npos) << setting.name;
}

TEST_F(TrainCommand, SaysWhatIsWrong) {
  const auto error = [&](const std::string& more) { return run_command(train(more)); };
  expect_parts(run_command(cat("train --dry-run --set train.steps=77 ", folder_.path("config.toml"))), 0,
               {"77 of 1 x"});
  expect_parts(error("--set train.tokens=3 --set parallel.ranks=8"), 2, {"train.tokens 3 leaves a rank without"});
  expect_parts(error("--set train.tokns=5"), 2, {"train.tokns", "train.tokens"});
  expect_parts(error("--set train.tokens=many"), 2, {"train.tokens", "many"});
  expect_parts(error("--set train.schedule=square"), 2, {"cosine, linear, constant"});
  expect_parts(error("--set parallel.grid=startrail:3 --set parallel.ranks=8"), 2, {"startrail:3"});
  expect_parts(error("--set parallel.ranks=8 --set parallel.grid=ulysses"), 2, {"heads"});
  expect_parts(error("--set parallel.ranks=4 --set parallel.data_parallel=2"), 2, {"train.batch"});
  expect_parts(error("--set data.path=/no/such"), 2, {"/no/such"});
  expect_parts(error("--set train.tokens=100000000"), 2, {"set train.tokens to"});
  expect_parts(error("--from " + folder_.path("data")), 2, {"config.json"});
  expect_parts(error("--resume " + folder_.path("data")), 2, {"leave out the config file"});
  folder_.write("bad.toml", "[train]\nsteps = \"ten\"\n");
  expect_parts(run_command("train " + folder_.path("bad.toml")), 2, {"bad.toml", "train.steps"});
  expect_parts(run_command("train"), 2, {"data.path"});
  expect_parts(error("--set run.folder=/proc/nowhere/run"), 2, {"/proc/nowhere"});
  expect_parts(error("--set model.vocabulary=10"), 2, {"model.vocabulary 10 cannot hold bytes"});
  expect_parts(error("--set data.end_token=5"), 2, {"data.end_token is for token files"});
  // A token beyond the vocabulary is found when it is read.
  folder_.write("t.bin", token_bytes(std::vector<uint16_t>(300, 999)));
  expect_parts(error("--set data.path=" + folder_.path("t.bin")), 2, {"999", "t.bin"});
  EXPECT_FALSE(has_checkpoint(run_folder()));
}

// A run of very many steps in the background. `hangup` is what SIGHUP does to it, SIG_IGN as under nohup.
pid_t start(const std::string& config, const std::string& output, sighandler_t hangup = SIG_DFL) {
  const pid_t child = fork();
  if (child != 0) return child;
  signal(SIGHUP, hangup);
  const int out = open(output.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0644);
  dup2(out, STDOUT_FILENO);
  dup2(out, STDERR_FILENO);
  execl(STARTRAIL_COMMAND, "startrail", "train", config.c_str(), "--set", "train.steps=100000000", nullptr);
  _exit(127);
}

void wait_for_steps(const fs::path& metrics) {
  const auto has_step = [&] {
    std::ifstream file(metrics);
    const std::string text(std::istreambuf_iterator<char>(file), {});
    return text.find("\"loss\":") != std::string::npos;
  };
  for (int i = 0; i < 600 && !has_step(); ++i) std::this_thread::sleep_for(std::chrono::milliseconds(50));
  ASSERT_TRUE(has_step()) << "no step in half a minute";
}

TEST_F(TrainCommand, SavesAndStopsWhenInterrupted) {
  for (const int asked : {SIGINT, SIGHUP}) {
    fs::remove_all(run_folder());
    const pid_t child = start(folder_.path("config.toml"), folder_.path("output"));
    wait_for_steps(fs::path(run_folder()) / "metrics.jsonl");
    kill(child, asked);
    int status = 0;
    waitpid(child, &status, 0);
    ASSERT_TRUE(WIFEXITED(status)) << strsignal(asked);
    EXPECT_EQ(WEXITSTATUS(status), 75);
    std::ifstream output(folder_.path("output"));
    const std::string text(std::istreambuf_iterator<char>(output), {});
    for (const char* part :
         {"stopping: finishing step ", " and saving it takes about ", " s; once more", "stopped at step", "--resume"})
      EXPECT_NE(text.find(part), std::string::npos) << text;
    const fs::path checkpoint = find_checkpoint(run_folder());
    verify_checkpoint(checkpoint);
    const int64_t step = read_state(checkpoint).step;
    EXPECT_GT(step, 0);
    expect_parts(run_command(cat("train --resume ", run_folder(), " --set train.steps=", step + 2)), 0, {"from step"});
  }
}

TEST_F(TrainCommand, OutlivesItsTerminalUnderNohup) {
  const pid_t child = start(folder_.path("config.toml"), folder_.path("output"), SIG_IGN);
  wait_for_steps(fs::path(run_folder()) / "metrics.jsonl");
  kill(child, SIGHUP);
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  EXPECT_EQ(waitpid(child, nullptr, WNOHANG), 0);
  kill(child, SIGTERM);
  int status = 0;
  waitpid(child, &status, 0);
  EXPECT_EQ(WEXITSTATUS(status), 75);
}

TEST_F(TrainCommand, StopsAtOnceWhenInterruptedTwice) {
  // A step of each takes far longer than the time allowed.
  for (const std::string slow : {"[model]\ndim = 512\nlayers = 8\nheads = 8\nhidden = 2048\n",
                                 "[model]\ndim = 64\nlayers = 8\nheads = 4\n[parallel]\nranks = 256\n"}) {
    SCOPED_TRACE(slow);
    fs::remove_all(run_folder());
    folder_.write("slow.toml", cat(slow, "[data]\npath = \"", folder_.path("data"),
                                   "\"\n[train]\ntokens = 8000\n[run]\nfolder = \"", run_folder(), "\"\n"));
    const pid_t child = start(folder_.path("slow.toml"), folder_.path("output"));
    const fs::path written = fs::path(run_folder()) / "metrics.jsonl";  // made before the first step
    for (int i = 0; i < 600 && !fs::exists(written); ++i) std::this_thread::sleep_for(std::chrono::milliseconds(50));
    std::this_thread::sleep_for(std::chrono::milliseconds(300));
    kill(child, SIGINT);
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
    ASSERT_EQ(waitpid(child, nullptr, WNOHANG), 0);  // still in its step
    const auto before = std::chrono::steady_clock::now();
    kill(child, SIGINT);
    int status = 0;
    waitpid(child, &status, 0);
    EXPECT_LT(std::chrono::steady_clock::now() - before, std::chrono::seconds(2));
    EXPECT_EQ(WEXITSTATUS(status), 130);
    EXPECT_FALSE(has_checkpoint(run_folder()));
  }
}

}  // namespace
}  // namespace startrail

// Whole training runs: their losses do not depend on the ranks, repeat to the bit, and survive being stopped.
#include <ATen/ATen.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <torch/csrc/autograd/autograd.h>
#include <unistd.h>

#include <chrono>
#include <cmath>
#include <fstream>
#include <functional>
#include <random>
#include <set>
#include <thread>

#include "startrail/base/testing.h"
#include "startrail/run/comm/ranks.h"
#include "startrail/train/loop/estimate.h"
#include "startrail/train/loop/trainer.h"
#include "startrail/train/model/weights.h"
#include "tests/training.h"

namespace startrail {
namespace {

namespace fs = std::filesystem;

TEST(Train, LossesDoNotDependOnTheRanks) {
  expect_losses_of_one_rank(
      10, {{8, 1, "ring", true}, {8, 2, "startrail:2", true}, {8, 1, "team=2,ring=2,stripe=1,heads=2", false}});
}

TEST(Train, PackedDocumentsDoNotDependOnTheRanks) {
  const TempFolder folder;
  TrainConfig config = small_config(folder, /*lines=*/4, /*files=*/100);
  config.train.steps = 5;
  config.train.batch = 4;
  config.data.documents = true;  // some targets are not valid, and not equally many on each rank
  config.train.tokens = 301;     // which no number of ranks divides
  const std::vector<double> one = run_training(config).losses;
  for (const char* layout : {"zigzag", "contiguous", "striped"}) {
    config.parallel = {.ranks = 8, .data_parallel = 2, .grid = "team=2,ring=2", .layout = layout};
    const std::vector<double> many = run_training(config).losses;
    for (size_t i = 0; i < one.size(); ++i) EXPECT_NEAR(many[i], one[i], 1e-4 * one[i]) << layout << i;
  }
  config.data.documents = false;
  EXPECT_GT(std::abs(run_training(config).losses[0] - one[0]), 1e-5);  // the mask matters
}

// Of the mean loss over all valid tokens of the first step, by plain autograd on one rank.
double gradient_norm(const TrainConfig& config) {
  double norm = 0;
  run_ranks(1, 1, [&](const std::shared_ptr<Group>& group) {
    const auto shape = std::get<LlamaConfig>(model_config(config));
    const AttentionOptions options;
    Llama model(shape);
    ParameterRow row(model, at::kFloat);
    const Shard all{0, row.size()};
    row.weights().copy_(initial_values(model, static_cast<uint64_t>(config.train.seed), all));
    const TokenSource source(open_data(corpus_options(config, shape.vocabulary)), source_options(config));
    at::Tensor sum = at::zeros({}, at::kDouble);
    int64_t count = 0;
    std::set<int64_t> counts;
    for (int64_t i = 0; i < config.train.batch; ++i) {
      const Example example = source.training(i, Order::contiguous, *group);
      const Loss loss = model.loss(example, make_sequence(example, options, group, false));
      sum = sum + loss.sum;
      count += loss.count;
      counts.insert(loss.count);
    }
    EXPECT_GT(counts.size(), 1u);  // otherwise nothing is shown
    EXPECT_LT(count, 99 * config.train.batch * config.train.tokens / 100);
    torch::autograd::backward({sum / static_cast<double>(count)});
    row.collect_gradients();
    norm = row.gradients().to(at::kDouble).norm().item<double>();
  });
  return norm;
}

// AdamW's steps hardly depend on the gradient's scale, so losses do not show it; clipping does.
TEST(Train, GradientIsThatOfTheMeanOverAllValidTokens) {
  const TempFolder folder;
  TrainConfig config = small_config(folder, /*lines=*/1, /*files=*/200);
  config.train.steps = 1;
  config.train.batch = 4;
  config.train.tokens = 301;
  config.data.documents = true;
  const double expected = gradient_norm(config);
  EXPECT_NEAR(run_training(config).last.gradient_norm, expected, 1e-4 * expected);
  config.parallel.ranks = 8;
  config.parallel.data_parallel = 2;
  EXPECT_NEAR(run_training(config).last.gradient_norm, expected, 1e-4 * expected);
}

TEST(Train, ValidatesOnFewerTokensThanRanks) {
  const TempFolder folder;
  TrainConfig config = small_config(folder);
  config.train.steps = 1;
  config.data.validation_path = folder.write("short.txt", "abcd");
  const double one = run_training(config).validation.value();
  for (const char* grid : {"ring", "startrail:2", "heads=2,ring=4"}) {
    config.parallel.ranks = 8;
    config.parallel.grid = grid;
    EXPECT_NEAR(run_training(config).validation.value(), one, 1e-4 * one) << grid;
  }
}

TEST(Train, KeepsASecondTrainerOutOfTheRun) {
  const TempFolder folder;
  TrainConfig config = small_config(folder);
  config.train.steps = 1;
  const int file = open(folder.write("run/.lock", "").c_str(), O_RDWR);
  ASSERT_EQ(flock(file, LOCK_EX), 0);
  EXPECT_NE(error_of([&] { run_training(config, {}, true); }).find("by another process"), std::string::npos);
  EXPECT_FALSE(fs::exists(fs::path(config.run.folder) / "metrics.jsonl"));
  close(file);
  run_training(config, {}, true);
}

TEST(Train, NoStepIsMissingFromTheMetricsOfASavedOne) {
  const TempFolder folder;
  TrainConfig config = small_config(folder);
  config.train.steps = 3;
  config.run.save_every = 1;
  config.validate.every = 2;
  const auto lines = [&] {
    std::ifstream in(fs::path(config.run.folder) / "metrics.jsonl");
    std::vector<std::string> found;
    for (std::string line; std::getline(in, line);) found.push_back(line);
    return found;
  };
  std::vector<size_t> when_saved;
  run_training(config, {}, true, 0, [&](const fs::path&) { when_saved.push_back(lines().size()); });
  EXPECT_EQ(when_saved, (std::vector<size_t>{2, 3, 5}));  // step 2's validation comes after its checkpoint
  EXPECT_EQ(lines().size(), 6u);                          // what the run is, its steps, its validations
}

TEST(Train, BrainFloatFollowsFloat) {
  const TempFolder folder;
  TrainConfig config = small_config(folder);
  config.train.steps = 20;
  const std::vector<double> exact = run_training(config).losses;
  config.train.precision = "bfloat16";
  config.parallel.ranks = 4;
  config.parallel.grid = "startrail:2";
  const std::vector<double> narrow = run_training(config).losses;
  for (size_t i = 0; i < exact.size(); ++i) EXPECT_NEAR(narrow[i], exact[i], 0.02 * exact[i]) << i;
  EXPECT_NE(narrow, exact);
}

TEST(Train, RepeatsToTheBit) {
  const TempFolder folder;
  TrainConfig config = small_config(folder);
  config.train.steps = 10;
  config.parallel.ranks = 8;
  config.parallel.grid = "startrail:2";
  for (const char* precision : {"float32", "bfloat16"}) {
    config.train.precision = precision;
    const TrainingResult first = run_training(config), second = run_training(config);
    EXPECT_EQ(first.losses, second.losses);
    EXPECT_EQ(first.validation, second.validation);
  }
}

TEST(Train, ResumesToTheBitAndOnOtherRanks) {
  const TempFolder folder;
  TrainConfig config = small_config(folder);
  config.parallel.ranks = 4;
  config.parallel.grid = "startrail:2";
  config.train.batch = 2;
  for (const char* precision : {"float32", "bfloat16"}) {
    config.train.precision = precision;
    config.train.steps = 20;
    config.run.folder = folder.path(cat("straight-", precision));
    const std::vector<double> straight = run_training(config, {}, true).losses;
    config.run.folder = folder.path(cat("parts-", precision));
    config.run.save_every = 10;
    config.run.keep = 0;
    std::vector<double> parts = run_training(config, {}, true, /*stop_after=*/10).losses;
    ASSERT_EQ(parts.size(), 10u);
    const fs::path checkpoint = find_checkpoint(config.run.folder);
    for (double loss : run_training(config, checkpoint, true).losses) parts.push_back(loss);
    EXPECT_EQ(parts, straight);
    for (const auto& [ranks, data_parallel, grid] :
         {std::tuple(1, 1, "ring"), std::tuple(8, 2, "ring"), std::tuple(2, 1, "ulysses")}) {
      TrainConfig other = config;
      other.parallel.ranks = ranks;
      other.parallel.data_parallel = data_parallel;
      other.parallel.grid = grid;
      const std::vector<double> half = run_training(other, checkpoint).losses;
      ASSERT_EQ(half.size(), 10u);
      const double limit = precision == std::string("float32") ? 1e-4 : 1e-2;
      for (size_t i = 0; i < half.size(); ++i) EXPECT_NEAR(half[i], straight[10 + i], limit * straight[10 + i]) << grid;
    }
  }
}

TEST(Train, KeepsTheNewestCheckpointsAndRefusesDamagedOnes) {
  const TempFolder folder;
  TrainConfig config = small_config(folder);
  config.train.steps = 6;
  config.run.save_every = 1;
  config.run.keep = 2;
  run_training(config, {}, true);
  const fs::path checkpoints = fs::path(config.run.folder) / "checkpoints";
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(checkpoints)) names.push_back(entry.path().filename());
  std::sort(names.begin(), names.end());
  EXPECT_EQ(names, (std::vector<std::string>{"latest", "step-00000005", "step-00000006"}));
  EXPECT_EQ(fs::canonical(checkpoints / "latest"), fs::canonical(checkpoints / "step-00000006"));
  verify_checkpoint(checkpoints / "latest");

  for (const char* name : {"model.safetensors", "optimizer.safetensors", "config.json"}) {
    const TempFolder copy;
    fs::copy(checkpoints / "step-00000006", copy.path("step"));
    const fs::path file = fs::path(copy.path("step")) / name;
    std::fstream damaged(file, std::ios::in | std::ios::out | std::ios::binary);
    damaged.seekp(static_cast<int64_t>(fs::file_size(file)) - 9);
    damaged.put('\x55');
    damaged.close();
    EXPECT_NE(error_of([&] { verify_checkpoint(copy.path("step")); }).find(cat(name, " is damaged")),
              std::string::npos);
    fs::resize_file(file, fs::file_size(file) - 1);
    EXPECT_NE(error_of([&] { verify_checkpoint(copy.path("step")); }).find("bytes and should have"), std::string::npos);
    fs::remove(file);
    EXPECT_NE(error_of([&] { verify_checkpoint(copy.path("step")); }).find("is missing"), std::string::npos);
  }
}

TEST(Train, GoesOnFromAnEarlierCheckpointAndGivesUpTheLaterOnes) {
  const TempFolder folder;
  TrainConfig config = small_config(folder);
  const fs::path checkpoints = fs::path(config.run.folder) / "checkpoints";
  const auto names = [&] {
    std::set<std::string> found;
    for (const auto& entry : fs::directory_iterator(checkpoints)) found.insert(entry.path().filename());
    return found;
  };
  config.train.steps = 6;
  config.run.save_every = 2;
  config.run.keep = 2;
  run_training(config, {}, true);
  ASSERT_EQ(names(), (std::set<std::string>{"latest", "step-00000004", "step-00000006"}));
  fs::copy(checkpoints / "step-00000004", checkpoints / "step-9-copy");  // not a name of ours: left alone
  config.train.steps = 5;
  config.run.keep = 1;
  run_training(config, checkpoints / "step-00000004", true);
  EXPECT_EQ(names(), (std::set<std::string>{"latest", "step-00000005", "step-9-copy"}));
  EXPECT_EQ(find_checkpoint(config.run.folder), checkpoints / "step-00000005");
  verify_checkpoint(checkpoints / "latest");

  // Killed between giving a folder its name and pointing at it: what `latest` says holds; without it, the last.
  fs::copy(checkpoints / "step-00000005", checkpoints / "step-00000007");
  EXPECT_EQ(find_checkpoint(config.run.folder), checkpoints / "step-00000005");
  fs::remove(checkpoints / "latest");
  EXPECT_EQ(find_checkpoint(config.run.folder), checkpoints / "step-00000007");
}

TEST(Train, RefusesAStateThatSaysTooLittle) {
  const TempFolder folder;
  folder.write("step/training.json", "{\"format\": 1}");
  for (const auto& read : {std::function<void()>([&] { read_state(folder.path("step")); }),
                           std::function<void()>([&] { verify_checkpoint(folder.path("step")); })})
    EXPECT_NE(error_of(read).find("training.json is damaged"), std::string::npos);
}

TEST(Train, ActivationsGrowWithTheTokensAndNoFaster) {
  const TempFolder folder;
  TrainConfig config = small_config(folder, /*lines=*/8000);
  config.train.steps = 2;
  config.train.precision = "bfloat16";
  const auto activations = [&](int64_t tokens) {
    config.train.tokens = tokens;
    const TrainingResult result = run_training(config);
    return static_cast<double>(result.last.peak_bytes - result.static_bytes);
  };
  const double shorter = activations(2048), longer = activations(4096);
  EXPECT_LT(longer, 2.1 * shorter);
  EXPECT_GT(longer, 1.5 * shorter);
}

TEST(Train, AdvisesWhatWouldSaveMemory) {
  const TempFolder folder;
  TrainConfig config = small_config(folder);
  const auto advice = [&](int64_t ranks) {
    config.parallel.ranks = ranks;
    return error_of([&] { check_memory(config, model_config(config), {.bytes = 1}); });
  };
  EXPECT_NE(advice(1).find("choose a smaller model"), std::string::npos);
  EXPECT_EQ(advice(1).find("fewer ranks"), std::string::npos);
  EXPECT_NE(advice(8).find("choose a smaller model or fewer ranks"), std::string::npos);
}

TEST(Train, NeedsAboutTheMemoryThatWasEstimated) {
  const TempFolder folder;
  TrainConfig config = small_config(folder, /*lines=*/8000);
  config.train.steps = 2;
  for (const auto& [tokens, ranks, grid, precision, recompute] :
       {std::tuple(2048, 1, "ring", "float32", true), std::tuple(2048, 1, "ring", "bfloat16", true),
        std::tuple(2048, 1, "ring", "float32", false), std::tuple(8192, 8, "ring", "bfloat16", true),
        std::tuple(8192, 8, "startrail:2", "float32", true), std::tuple(8192, 4, "ulysses", "bfloat16", true),
        std::tuple(2048, 64, "startrail:4", "float32", true)}) {
    config.train.tokens = tokens;
    config.train.precision = precision;
    config.train.recompute = recompute;
    config.parallel.ranks = ranks;
    config.parallel.grid = grid;
    const ModelConfig model = model_config(config);
    const Estimate e = estimate(config, model);
    const TrainingResult result = run_training(config);
    const double measured = static_cast<double>(result.last.peak_bytes);
    const std::string what =
        cat(tokens, " tokens, ", ranks, " ranks, ", grid, " ", precision, recompute ? "" : ", all saved", ": measured ",
            human_bytes(measured), " (static ", human_bytes(result.static_bytes), ")");
    EXPECT_LT(measured, 1.25 * static_cast<double>(e.rank_bytes())) << what;
    EXPECT_GT(measured, 0.6 * static_cast<double>(e.rank_bytes())) << what;
    EXPECT_EQ(result.last.attention.total(), e.attention_bytes) << what;
    EXPECT_NEAR(static_cast<double>(result.last.weight_bytes), static_cast<double>(e.weight_bytes), 1000.0) << what;
  }
}

TEST(Train, KilledAtAnyMomentLeavesACheckpointThatLoads) { kill_and_resume(5, 1); }

}  // namespace
}  // namespace startrail

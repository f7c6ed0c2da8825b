#include "tests/training.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <random>
#include <thread>

#include "startrail/train/loop/resolve.h"
#include "startrail/train/model/weights.h"

namespace startrail {

namespace fs = std::filesystem;

TrainConfig small_config(const TempFolder& folder, int lines, int files) {
  std::mt19937 random(3);
  for (int file = 0; file < files; ++file) {
    std::string text;
    for (int i = 0; i < lines; ++i)
      text += cat("line ", i, " of file ", file, " says ", random() % 1000, random() % 3 ? " twice\n" : " once\n");
    folder.write(cat("data/", file, ".txt"), text);
  }
  TrainConfig config;
  config.model.dim = 64;
  config.model.layers = 2;
  config.model.heads = 4;
  config.model.kv_heads = 2;
  config.model.hidden = 160;
  config.data.path = folder.path("data");
  config.train.tokens = 256;
  config.train.precision = "float32";
  config.train.warmup = 5;
  config.train.learning_rate = 3e-3;
  config.parallel.threads = 2;
  config.validate.every = 0;
  config.validate.windows = 2;
  config.run.folder = folder.path("run");
  config.run.save_every = 0;
  return config;
}

TrainingResult run_training(const TrainConfig& config, const fs::path& checkpoint, bool save, int stop_after,
                            const std::function<void(const fs::path&)>& on_checkpoint) {
  auto model = std::get<LlamaConfig>(model_config(config));
  model.vocabulary = 256;
  check_config(config, model);
  int steps = 0;
  Training training{
      .config = config,
      .make_model = [&] { return std::make_unique<Llama>(model); },
      .attention = attention_options(config, model),
      .source = std::make_shared<TokenSource>(open_data(corpus_options(config, 256)), source_options(config)),
      .checkpoint = checkpoint,
      .save = save};
  training.observer.on_checkpoint = on_checkpoint;
  training.observer.stop = [&] { return ++steps == stop_after; };
  return train(training);
}

void expect_losses_of_one_rank(int steps, const std::vector<SplitRun>& splits) {
  const TempFolder folder;
  TrainConfig config = small_config(folder);
  config.train.steps = steps;
  config.train.batch = 2;
  const std::vector<double> one = run_training(config).losses;
  ASSERT_EQ(one.size(), static_cast<size_t>(steps));
  EXPECT_LT(one.back(), one.front() - 0.5);  // it learns
  for (const SplitRun& split : splits) {
    config.parallel.ranks = split.ranks;
    config.parallel.data_parallel = split.data_parallel;
    config.parallel.grid = split.grid;
    config.train.recompute = split.recompute;
    const std::vector<double> many = run_training(config).losses;
    ASSERT_EQ(many.size(), one.size());
    for (size_t i = 0; i < one.size(); ++i)
      EXPECT_NEAR(many[i], one[i], 1e-4 * one[i]) << split.grid << " on " << split.ranks << ", step " << i + 1;
  }
}

TrainConfig small_dit_config() {
  TrainConfig config;
  config.model.preset = "dit-tiny";
  config.model.layers = 2;
  config.model.dim = 64;
  config.model.classes = 4;
  config.data.path = kShapes;
  config.data.generated = 1000;
  config.train.precision = "float32";
  config.train.steps = 30;
  config.train.batch = 2;
  config.train.warmup = 5;
  config.train.learning_rate = 2e-3;
  config.parallel.threads = 2;
  config.validate.every = 0;
  config.validate.windows = 2;
  return config;
}

TrainingResult run_dit_training(const TrainConfig& given, const fs::path& checkpoint) {
  const auto [config, model] = resolve({.config = given});
  const auto& shape = std::get<DitConfig>(model);
  check_config(config, shape);
  return train({.config = config,
                .make_model = [&] { return std::make_unique<Dit>(shape); },
                .attention = attention_options(config, shape),
                .source = std::make_shared<PictureSource>(open_pictures(pictures_options(config, shape)), nullptr,
                                                          shape, picture_source_options(config, shape)),
                .checkpoint = checkpoint,
                .save = !config.run.folder.empty() && config.run.save_every > 0});
}

void expect_dit_losses_of_one_rank(const char* objective, int steps, const std::vector<SplitRun>& splits) {
  SCOPED_TRACE(objective);
  TrainConfig config = small_dit_config();
  config.model.objective = objective;
  config.train.steps = steps;
  config.run.save_every = 0;
  const TrainingResult one = run_dit_training(config);
  ASSERT_EQ(one.losses.size(), static_cast<size_t>(steps));
  EXPECT_LT(one.losses.back(), one.losses.front());
  for (const SplitRun& split : splits) {
    SCOPED_TRACE(cat(split.grid, " on ", split.ranks));
    config.parallel.ranks = split.ranks;
    config.parallel.data_parallel = split.data_parallel;
    config.parallel.grid = split.grid;
    config.train.recompute = split.recompute;
    const TrainingResult many = run_dit_training(config);
    ASSERT_EQ(many.losses.size(), one.losses.size());
    for (size_t i = 0; i < one.losses.size(); ++i)
      EXPECT_NEAR(many.losses[i], one.losses[i], 1e-4 * one.losses[i]) << "step " << i;
    EXPECT_NEAR(*many.validation, *one.validation, 1e-4 * *one.validation);
  }
}

void kill_and_resume(int times, unsigned seed) {
  const TempFolder folder;
  const TrainConfig config = small_config(folder);
  const std::string run = folder.path("run");
  std::mt19937 random(seed);
  int64_t last = 0, kills = 0;
  for (int attempt = 0; kills < times; ++attempt) {
    ASSERT_LT(attempt, 20 * times) << "no kill ever hit a running command";
    const pid_t child = fork();
    if (child == 0) {
      const int silent = open("/dev/null", O_WRONLY);
      dup2(silent, STDOUT_FILENO);
      dup2(silent, STDERR_FILENO);
      if (has_checkpoint(run))
        execl(STARTRAIL_COMMAND, "startrail", "train", "--resume", run.c_str(), nullptr);
      else
        execl(STARTRAIL_COMMAND, "startrail", "train", "--set", cat("data.path=", config.data.path).c_str(), "--set",
              cat("run.folder=", run).c_str(), "--set", "train.steps=1000000", "--set", "train.tokens=64", "--set",
              "model.layers=1", "--set", "run.save_every=1", "--set", "validate.every=0", "--set", "parallel.ranks=2",
              "--set", "run.keep=2", nullptr);
      _exit(127);
    }
    // Long enough to start, then any moment: steps and saves take a few milliseconds here.
    std::this_thread::sleep_for(std::chrono::milliseconds(800 + random() % 1500));
    ASSERT_EQ(waitpid(child, nullptr, WNOHANG), 0) << "the command ended by itself";
    kill(child, SIGKILL);
    int status = 0;
    waitpid(child, &status, 0);
    ASSERT_TRUE(WIFSIGNALED(status));
    if (!has_checkpoint(run)) continue;  // killed before its first step
    ++kills;
    const fs::path checkpoint = find_checkpoint(run), latest = fs::path(run) / "checkpoints" / "latest";
    const TrainingState state = read_state(checkpoint);
    EXPECT_GE(state.step, last) << "a complete checkpoint was lost";
    last = state.step;
    verify_checkpoint(checkpoint);
    load_model(checkpoint, at::kFloat);
    if (fs::exists(fs::symlink_status(latest))) verify_checkpoint(latest);
  }
  EXPECT_GT(last, 0);
}

}  // namespace startrail

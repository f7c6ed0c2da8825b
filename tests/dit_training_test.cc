// Training a DiT: the same on any grid, resumable, and within the memory that was estimated.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <limits>

#include "startrail/base/testing.h"
#include "startrail/run/comm/ranks.h"
#include "startrail/train/loop/estimate.h"
#include "startrail/train/loop/resolve.h"
#include "startrail/train/loop/trainer.h"
#include "startrail/train/model/weights.h"
#include "tests/training.h"

namespace startrail {
namespace {

namespace fs = std::filesystem;

TEST(DitTraining, IsTheSameOnAnyGrid) {
  expect_dit_losses_of_one_rank("flow", 8, {{8, 1, "ring"}, {8, 1, "team=4,stripe=2"}});
  expect_dit_losses_of_one_rank("ddpm", 8, {{8, 1, "startrail:2"}, {4, 2, "ring"}});
}

// Several pictures in a sequence are the same training as one after the other.
TEST(DitTraining, PacksPictures) {
  TrainConfig config = small_dit_config();
  config.run.save_every = 0;
  config.train.batch = 4;
  const TrainingResult single = run_dit_training(config);
  config.train.batch = 1;
  config.train.tokens = 4 * 64;
  config.parallel.ranks = 4;
  config.parallel.grid = "startrail:2";
  const TrainingResult packed = run_dit_training(config);
  for (size_t i = 0; i < single.losses.size(); ++i)
    EXPECT_NEAR(packed.losses[i], single.losses[i], 1e-4 * single.losses[i]) << i;
}

// Levels from a quarter to three quarters: half of those drawn evenly, and 73% of the logistics of normal numbers.
TEST(DitTraining, DrawsLevelsOfNoiseAsAskedFor) {
  for (const auto& [times, share] : {std::pair("uniform", 0.5), std::pair("logit-normal", 0.728)}) {
    TrainConfig config = small_dit_config();
    config.data.times = times;
    const auto shape = std::get<DitConfig>(model_config(config));
    config = resolve({.config = config}).config;
    const PictureSource source(open_pictures(pictures_options(config, shape)), nullptr, shape,
                               picture_source_options(config, shape));
    double middle = 0, sum = 0;
    constexpr int64_t kDrawn = 600;  // a standard error of 2%
    run_ranks(1, 1, [&](const std::shared_ptr<Group>& group) {
      for (int64_t i = 0; i < kDrawn; ++i) {
        const double time = source.training(i, Order::contiguous, *group).conditions[0].time / 1000;
        sum += time;
        if (time > 0.25 && time < 0.75) ++middle;
      }
    });
    EXPECT_NEAR(middle / kDrawn, share, 0.07) << times;
    EXPECT_NEAR(sum / kDrawn, 0.5, 0.05) << times;
  }
}

TEST(DitTraining, GoesOnFromACheckpointWithItsMeanOfWeights) {
  const TempFolder folder;
  TrainConfig config = small_dit_config();
  config.train.ema = 0.9;
  config.train.steps = 6;
  config.run.save_every = 3;
  config.run.keep = 0;
  config.run.folder = folder.path("whole");
  const TrainingResult whole = run_dit_training(config);
  config.run.folder = folder.path("half");
  const TrainingResult half = run_dit_training(config, fs::path(folder.path("whole")) / "checkpoints/step-00000003");
  ASSERT_EQ(half.losses.size(), 3u);
  for (size_t i = 0; i < 3; ++i) EXPECT_EQ(half.losses[i], whole.losses[i + 3]);
  for (const char* file : {"model.safetensors", "ema.safetensors", "optimizer.safetensors"}) {
    const auto a = read_tensors(find_checkpoint(folder.path("whole")) / file).tensors,
               b = read_tensors(find_checkpoint(folder.path("half")) / file).tensors;
    for (const auto& [name, tensor] : a) EXPECT_TRUE(tensor.equal(b.at(name))) << file << " " << name;
  }
  // The mean lies between the weights of the steps, and is what is loaded unless the last weights are asked for.
  const auto mean = load_dit(find_checkpoint(folder.path("whole")), at::kFloat),
             last = load_dit(find_checkpoint(folder.path("whole")), at::kFloat, Which::last);
  EXPECT_FALSE(mean->parameters()[0].value.equal(last->parameters()[0].value));
}

// One of its pictures is not finite.
class Poisoned : public PictureSource {
 public:
  Poisoned(const TrainConfig& config, const DitConfig& shape, int64_t bad)
      : PictureSource(open_pictures(pictures_options(config, shape)), nullptr, shape,
                      picture_source_options(config, shape)),
        bad_(bad) {}
  Example training(int64_t index, Order layout, Group& group) const override {
    Example example = PictureSource::training(index, layout, group);
    if (index == bad_) example.input.fill_(std::numeric_limits<float>::quiet_NaN());
    return example;
  }

 private:
  int64_t bad_;
};

// Such a step changes nothing, so what a run has learned is saved; but its end is an error unless it was stopped there.
TEST(DitTraining, ABadLastStepLosesNothing) {
  for (const bool stops : {false, true}) {
    const TempFolder folder;
    TrainConfig config = small_dit_config();
    config.train.steps = stops ? 9 : 3;
    config.train.batch = 1;
    config.run.save_every = 0;
    config.run.folder = folder.path("run");
    const auto shape = std::get<DitConfig>(model_config(config));
    config = resolve({.config = config}).config;
    Training training{.config = config,
                      .make_model = [&] { return std::make_unique<Dit>(shape); },
                      .attention = attention_options(config, shape),
                      .source = std::make_shared<Poisoned>(config, shape, 2)};
    int asked = 0;
    if (stops) training.observer.stop = [&] { return ++asked == 3; };
    TrainingResult result;
    const std::string error = error_of([&] { result = train(training); });
    EXPECT_EQ(result.bad_steps, stops ? 1 : 0);  // an error has no result
    EXPECT_EQ(error.find("did not recover by its end, step 3") != std::string::npos, !stops) << error;
    EXPECT_EQ(find_checkpoint(config.run.folder).filename(), "step-00000003");
    EXPECT_NO_THROW(load_dit(find_checkpoint(config.run.folder), at::kFloat));
  }
}

TEST(DitTraining, NeedsAboutTheMemoryThatWasEstimated) {
  for (const auto& [ranks, grid, precision, recompute, side] :
       {std::tuple(1, "ring", "float32", true, 256), std::tuple(1, "ring", "bfloat16", true, 256),
        std::tuple(1, "ring", "float32", false, 256), std::tuple(4, "startrail:2", "float32", true, 256),
        std::tuple(4, "ring", "bfloat16", true, 256), std::tuple(1, "ring", "float32", true, 64),
        std::tuple(1, "ring", "bfloat16", false, 64)}) {  // 16 pictures in a sequence
    TrainConfig config = small_dit_config();
    config.run.save_every = 0;
    config.model.height = config.model.width = side;
    config.train.tokens = 4096;
    config.train.steps = 2;
    config.train.batch = 1;
    config.validate.windows = 1;
    config.train.precision = precision;
    config.train.recompute = recompute;
    config.train.ema = 0.9;
    config.parallel.ranks = ranks;
    config.parallel.grid = grid;
    const auto [settled, model] = resolve({.config = config});
    const Estimate e = estimate(settled, model);
    const TrainingResult result = run_dit_training(config);
    const auto measured = static_cast<double>(result.last.peak_bytes);
    const std::string what = cat(ranks, " ranks, ", grid, " ", precision, recompute ? "" : ", all saved", ", side ",
                                 side, ": measured ", human_bytes(measured), " (static ",
                                 human_bytes(result.static_bytes), "), estimated ", human_bytes(e.rank_bytes()));
    EXPECT_LT(measured, 1.25 * static_cast<double>(e.rank_bytes())) << what;
    EXPECT_GT(measured, 0.6 * static_cast<double>(e.rank_bytes())) << what;
    EXPECT_EQ(result.last.attention.total(), e.attention_bytes) << what;
  }
}

// Weights and what is kept for each of them are most of it here, so that a copy of them all would show.
TEST(DitTraining, NeedsNoCopiesOfItsWeightsThatWereNotEstimated) {
  for (const char* precision : {"float32", "bfloat16"}) {
    TrainConfig config = small_dit_config();
    config.run.save_every = 0;
    config.model.dim = 512;
    config.train.steps = 2;
    config.train.batch = 1;
    config.train.precision = precision;
    const auto [settled, model] = resolve({.config = config});
    const Estimate e = estimate(settled, model);
    ASSERT_GT(e.weights + e.gradients + e.optimizer, 0.9 * static_cast<double>(e.rank_bytes()));
    const auto measured = static_cast<double>(run_dit_training(config).last.peak_bytes);
    EXPECT_LT(measured, 1.25 * static_cast<double>(e.rank_bytes())) << precision;
    EXPECT_GT(measured, 0.6 * static_cast<double>(e.rank_bytes())) << precision;
  }
}

}  // namespace
}  // namespace startrail

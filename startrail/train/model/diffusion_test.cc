#include "startrail/train/model/diffusion.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "startrail/base/testing.h"

namespace startrail {
namespace {

TEST(Diffusion, LevelsGoFromThePictureToNoise) {
  const Level middle = level_at("flow", 0.25);
  EXPECT_EQ(middle.time, 250);
  EXPECT_EQ(middle.signal, 0.75);
  EXPECT_EQ(middle.noise, 0.25);
  for (int i = 0; i < 1000; ++i) {
    const Level level = level_at("ddpm", i / 1000.0 + 1e-9);
    EXPECT_EQ(level.time, i);
    EXPECT_NEAR(level.signal * level.signal + level.noise * level.noise, 1, 1e-12);
  }
  // Two values of the published schedule: after the first step, and after all of them.
  EXPECT_NEAR(level_at("ddpm", 0).signal, std::sqrt(0.9999), 1e-12);
  EXPECT_NEAR(level_at("ddpm", 0.9999).signal, std::sqrt(4.0358e-05), 1e-6);
  for (const char* objective : {"flow", "ddpm"})
    for (int64_t steps : {1, 7, 50, 1000}) {
      const auto levels = sampling_levels(objective, steps);
      ASSERT_EQ(static_cast<int64_t>(levels.size()), steps + 1);
      EXPECT_EQ(levels.front().time, objective == std::string("flow") ? 1000 : 999);
      EXPECT_EQ(levels.back().signal, 1);
      EXPECT_EQ(levels.back().noise, 0);
      for (size_t i = 1; i < levels.size(); ++i) EXPECT_LT(levels[i].noise, levels[i - 1].noise);
    }
  EXPECT_EQ(error_of([] { sampling_levels("flow", 0); }), "steps 0 must be 1 to 1000");
  EXPECT_EQ(error_of([] { sampling_levels("ddpm", 1001); }), "steps 1001 must be 1 to 1000");
}

// Who knows the picture and the noise arrives at the picture, in any number of steps.
TEST(Diffusion, StepsWithTheTrueAnswerLeadToThePicture) {
  const at::Tensor picture = at::randn({20}, at::kDouble), noise = at::randn({20}, at::kDouble);
  for (const char* objective : {"flow", "ddpm"})
    for (int64_t steps : {1, 5, 40}) {
      const auto levels = sampling_levels(objective, steps);
      at::Tensor x = picture * levels[0].signal + noise * levels[0].noise;
      for (int64_t i = 0; i < steps; ++i)
        x = sampling_step(objective, x, objective_target(objective, picture, noise), levels[i], levels[i + 1]);
      EXPECT_LT((x - picture).abs().max().item<double>(), 1e-9) << objective << " " << steps;
    }
}

TEST(Diffusion, NoiseIsNormalAndDependsOnThePlaceOnly) {
  const int64_t tokens = 500, features = 48;
  const at::Tensor all = noise_rows({11, 12}, at::arange(2 * tokens, at::kLong), tokens, features);
  EXPECT_NEAR(all.mean().item<double>(), 0, 0.01);
  EXPECT_NEAR(all.std().item<double>(), 1, 0.01);
  EXPECT_NEAR(all.pow(4).mean().item<double>(), 3, 0.1);
  // No two rows and no two features alike.
  const at::Tensor across = all.t().matmul(all) / static_cast<double>(all.size(0));
  EXPECT_LT((across - at::eye(features)).abs().max().item<double>(), 0.2);
  EXPECT_LT((all.narrow(0, 0, tokens) * all.narrow(0, tokens, tokens)).mean().abs().item<double>(), 0.03);
  const at::Tensor some = at::tensor({7, 903, 500, 0}, at::kLong);
  EXPECT_TRUE(noise_rows({11, 12}, some, tokens, features).equal(all.index_select(0, some)));
}

TEST(Diffusion, PatchesGoBackToThePicture) {
  DitConfig shape;
  shape.size = {4, 12, 20};
  shape.patch = {2, 3, 5};
  const at::Tensor picture = at::randn({3, 4, 12, 20});
  const at::Tensor patches = to_patches(picture, shape.patch);
  EXPECT_EQ(patches.sizes(), at::IntArrayRef({2 * 4 * 4, 3 * 2 * 3 * 5}));
  EXPECT_TRUE(from_patches(patches, shape).equal(picture));
  // Token 1 is the second column of patches; its features are channel, frame, row, column.
  EXPECT_EQ(patches[1][0].item<float>(), picture[0][0][0][5].item<float>());
  EXPECT_EQ(patches[1][2 * 3 * 5 + 3 * 5 + 5 + 1].item<float>(), picture[1][1][1][6].item<float>());
}

}  // namespace
}  // namespace startrail

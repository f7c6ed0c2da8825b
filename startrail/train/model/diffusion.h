// Noise and pictures: how a picture is made noisy for training, and how a model's predictions lead back from noise to a
// picture. A noisy picture is signal * picture + noise * noise; the objectives differ in the levels they go through and
// in what the model predicts.
//   flow  (rectified flow)  signal = 1 - t, noise = t; predicts noise - picture, the velocity
//   ddpm                    1,000 steps, signal^2 + noise^2 = 1; predicts the noise
// One step of sampling takes the picture and the noise that the prediction implies to a lower level: for ddpm that is
// DDIM (without added noise), for flow Euler's step along the velocity.
#pragma once

#include <array>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "startrail/train/model/dit.h"

namespace startrail {

struct Level {
  double time = 0;  // as the model sees it
  double signal = 1, noise = 0;
};

// The level at `u` in [0, 1) from the picture to pure noise.
Level level_at(const std::string& objective, double u);
// From the highest level down, `steps` of them, and then the picture itself.
std::vector<Level> sampling_levels(const std::string& objective, int64_t steps);

// What the model is to predict.
at::Tensor objective_target(const std::string& objective, const at::Tensor& picture, const at::Tensor& noise);
// From a noisy picture at `now` to `next`, given the prediction.
at::Tensor sampling_step(const std::string& objective, const at::Tensor& noisy, const at::Tensor& prediction,
                         const Level& now, const Level& next);

// Normally distributed numbers, float32, for the tokens at `places` of a sequence of pictures with `tokens` each: row
// i is [features] of picture places[i] / tokens, whose noise is keys[picture]'s. Any row can be had without the others,
// so every rank makes the noise of its own tokens and all agree.
at::Tensor noise_rows(const std::vector<uint64_t>& keys, const at::Tensor& places, int64_t tokens, int64_t features);

struct DrawOptions {
  std::vector<int64_t> labels;  // a picture for each; -1: without a class
  int64_t steps = 50;
  double guidance = 4;  // 1: none; above, away from what the model draws without a class
  uint64_t seed = 1;
};

// Draws pictures with the ranks of `group`, small ones several in a sequence: [pictures, channels, frames, height,
// width] float32, on every rank. The same to rounding whatever the grid. `on_step` is told the share that is done.
at::Tensor draw(const Dit& model, const DrawOptions& options, const AttentionOptions& attention,
                const std::shared_ptr<Group>& group, const std::function<void(double)>& on_step = {});

// [channels, frames, height, width] -> the patches of frames and rows that are there, [tokens, features], and back.
at::Tensor to_patches(const at::Tensor& picture, const std::array<int64_t, 3>& patch);
at::Tensor from_patches(const at::Tensor& patches, const DitConfig& shape);

}  // namespace startrail

#include "startrail/train/loop/recognise.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>

#include <ATen/CPUGeneratorImpl.h>
#include <cmath>
#include <optional>

#include "startrail/base/error.h"
#include "startrail/base/random.h"

namespace startrail {
namespace {

constexpr int64_t kBatch = 128, kWidths[] = {24, 48, 96};
constexpr double kLearningRate = 2e-3;

struct Batch {
  at::Tensor pictures, labels;
};

// A picture of each class has the highest score.
at::Tensor scores(const std::vector<at::Tensor>& weights, const at::Tensor& pictures) {
  at::Tensor x = pictures;
  size_t i = 0;
  for (; i + 2 < weights.size(); i += 2)
    x = at::relu(at::conv2d(x, weights[i], weights[i + 1], /*stride=*/2, /*padding=*/1));
  return at::linear(x.amax({2, 3}), weights[i], weights[i + 1]);
}

std::vector<at::Tensor> first_weights(int64_t channels, int64_t classes, uint64_t seed) {
  std::vector<at::Tensor> weights;
  const auto generator = at::make_generator<at::CPUGeneratorImpl>(seed);
  const auto add = [&](std::vector<int64_t> sizes, int64_t inputs) {
    at::Tensor weight =
        at::empty(sizes, at::kFloat).normal_(0, std::sqrt(2.0 / static_cast<double>(inputs)), generator);
    weights.push_back(weight.requires_grad_());
    weights.push_back(at::zeros({sizes[0]}, at::kFloat).requires_grad_());
  };
  for (int64_t width : kWidths) {
    add({width, channels, 3, 3}, channels * 9);
    channels = width;
  }
  add({classes, channels}, channels);
  return weights;
}

// AdamW, with a rate that falls to nothing.
class Learner {
 public:
  Learner(std::vector<at::Tensor>& weights, int64_t steps) : weights_(weights), steps_(steps) {
    for (const at::Tensor& weight : weights) {
      means_.push_back(at::zeros_like(weight));
      squares_.push_back(at::zeros_like(weight));
      counts_.push_back(at::zeros({}, at::kFloat));
    }
  }
  void step(int64_t number, const Batch& batch) {
    const at::Tensor loss = at::cross_entropy_loss(scores(weights_, batch.pictures), batch.labels);
    const auto gradients = torch::autograd::grad({loss}, weights_);
    const at::NoGradGuard no_grad;
    for (at::Tensor& done : counts_) done.add_(1);
    const double rate = kLearningRate * (1 - static_cast<double>(number) / static_cast<double>(steps_));
    std::vector<at::Tensor> values;
    for (const at::Tensor& weight : weights_) values.push_back(weight.detach());
    at::_fused_adamw_(values, gradients, means_, squares_, {}, counts_, rate, 0.9, 0.999, 1e-4, 1e-8, false, false);
  }

 private:
  std::vector<at::Tensor>& weights_;
  int64_t steps_;
  std::vector<at::Tensor> means_, squares_, counts_;
};

}  // namespace

Recogniser train_recogniser(const Pictures& pictures, const PictureShape& shape, int64_t held_out, int64_t steps,
                            uint64_t seed, bool skip_bad) {
  if (shape.frames != 1) throw UserError("only pictures are recognised, not videos");
  const int64_t count = pictures.count();
  int64_t training = count - held_out;
  if (training < 1 || held_out < 1)
    throw UserError(cat("the ", count, " pictures are too few to train on some and judge by ", held_out, " others"));
  Recogniser result{first_weights(shape.channels, static_cast<int64_t>(pictures.classes().size()), seed)};
  // Nothing when none of the pictures can be read.
  const auto read = [&](bool held, int64_t first, int64_t many) -> std::optional<Batch> {
    std::vector<at::Tensor> rows;
    std::vector<int64_t> labels;
    for (int64_t i = first; i < first + many; ++i) {
      const int64_t index = shuffled(held ? training + i : i % training, count, seed, 0);
      if (result.skipped.contains(index)) continue;
      try {
        rows.push_back(pictures.read(index, {0, 1, 0, shape.height}).squeeze(1));
      } catch (const UserError& error) {
        if (!skip_bad) throw;
        result.skipped.emplace(index, error.what());
        continue;
      }
      labels.push_back(pictures.label(index));
    }
    if (rows.empty()) return std::nullopt;
    return Batch{at::stack(rows), at::tensor(labels, at::kLong)};
  };
  const auto need = [&](bool enough) {
    if (!enough)
      throw UserError(cat("too few pictures can be read to train on some and judge by others; the first error: ",
                          result.skipped.begin()->second));
  };
  // The first one held out can be read, so that there is something to judge by.
  for (; !read(true, 0, 1); ++held_out) need(--training > 0);

  Learner learner(result.weights, steps);
  bool learned = steps == 0;
  for (int64_t step = 0; step < steps; ++step) {
    const auto batch = read(false, step * kBatch, kBatch);
    if (!batch) continue;
    learned = true;
    learner.step(step, *batch);
  }
  need(learned);
  int64_t right = 0, judged = 0;
  for (int64_t first = 0; first < held_out; first += kBatch) {
    const auto batch = read(true, first, std::min(kBatch, held_out - first));
    if (!batch) continue;
    judged += batch->labels.size(0);
    right += (result.classes_of(batch->pictures) == batch->labels).sum().item<int64_t>();
  }
  result.accuracy = static_cast<double>(right) / static_cast<double>(judged);
  return result;
}

at::Tensor Recogniser::classes_of(const at::Tensor& pictures) const {
  const at::NoGradGuard no_grad;
  return scores(weights, pictures.clamp(-1, 1)).argmax(1);
}

}  // namespace startrail

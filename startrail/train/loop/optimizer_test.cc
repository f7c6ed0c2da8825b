#include "startrail/train/loop/optimizer.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "startrail/base/testing.h"
#include "startrail/run/comm/ranks.h"

namespace startrail {
namespace {

// Three parameters of odd sizes: a matrix, a gain without decay, a matrix.
struct Toy : Model {
  Toy() { parameters_ = {{"a", {5, 3}, 0, 1, true}, {"b", {7}, 1, 0, false}, {"c", {2, 11}, 0, 1, true}}; }
  Loss loss(const Example&, const Sequence&) const override { return {}; }
  nlohmann::json config() const override { return {}; }
};

at::Tensor gradient_of(int rank, int step) {
  return at::sin(at::arange(44, at::kDouble) * (rank + 2) + step) * (step == 2 ? 40 : 1);
}

// AdamW as its paper writes it (arXiv 1711.05101), in float64 on the whole row.
struct Reference {
  at::Tensor weights, mean = at::zeros({44}, at::kDouble), square = at::zeros({44}, at::kDouble);
  at::Tensor ema = weights;
  double step(const at::Tensor& sum, const AdamWOptions& o, double rate, int count) {
    const double norm = sum.norm().item<double>();
    const at::Tensor g = o.clip > 0 && norm > o.clip ? sum * (o.clip / norm) : sum;
    const at::Tensor decay = at::full({44}, o.weight_decay, at::kDouble);
    decay.narrow(0, 15, 7).zero_();
    mean = o.beta1 * mean + (1 - o.beta1) * g;
    square = o.beta2 * square + (1 - o.beta2) * g * g;
    weights = weights * (1 - rate * decay) - rate * (mean / (1 - std::pow(o.beta1, count))) /
                                                 ((square / (1 - std::pow(o.beta2, count))).sqrt() + o.eps);
    const double stays = std::min(o.ema, (1.0 + count) / (10.0 + count));
    ema = stays * ema + (1 - stays) * weights;
    return norm;
  }
};

TEST(ShardedAdamW, IsAdamWOnAnyNumberOfRanks) {
  const AdamWOptions options{.weight_decay = 0.3, .clip = 8, .ema = 0.25};
  for (int ranks : {1, 2, 3, 7})
    for (at::ScalarType type : {at::kFloat, at::kBFloat16})
      run_ranks(ranks, 2, [&](const std::shared_ptr<Group>& world) {
        Toy model;
        ParameterRow row(model, type);
        ShardedAdamW optimizer(model, row, world, options);
        optimizer.set_weights(initial_values(model, 5, optimizer.shard()));
        Reference reference{initial_values(model, 5, {0, 44}).to(at::kDouble)};
        EXPECT_TRUE(at::equal(row.weights(), reference.weights.to(type)));
        for (int step = 0; step < 4; ++step) {
          at::Tensor sum = at::zeros({44}, at::kDouble);
          for (int rank = 0; rank < ranks; ++rank) sum += 0.5 * gradient_of(rank, step);
          row.gradients().copy_(gradient_of(world->rank(), step));
          const double norm = optimizer.step(0.1, 0.5), expected = reference.step(sum, options, 0.1, step + 1);
          EXPECT_NEAR(norm, expected, 1e-5 * expected);
          EXPECT_EQ(row.gradients().abs().sum().item<double>(), 0);
          const Shard& mine = optimizer.shard();
          EXPECT_LT((optimizer.ema() - reference.ema.narrow(0, mine.begin, mine.size())).abs().sum().item<double>(),
                    1e-4);
        }
        const double error = (row.weights().to(at::kDouble) - reference.weights).abs().max().item<double>();
        EXPECT_LT(error, type == at::kFloat ? 1e-5 : 2e-2) << ranks << " ranks";
        // Narrow weights are rounded from exact ones, not added to.
        const Shard& shard = optimizer.shard();
        EXPECT_LT((optimizer.weights().to(at::kDouble) - reference.weights.narrow(0, shard.begin, shard.size()))
                      .abs()
                      .sum()
                      .item<double>(),
                  1e-4);
      });
}

TEST(ShardedAdamW, ChangesNothingForAGradientThatIsNotFinite) {
  run_ranks(2, 2, [&](const std::shared_ptr<Group>& world) {
    Toy model;
    ParameterRow row(model, at::kFloat);
    ShardedAdamW optimizer(model, row, world, {});
    optimizer.set_weights(initial_values(model, 5, optimizer.shard()));
    const at::Tensor before = row.weights().clone();
    if (world->rank() == 1) row.gradients()[3] = std::numeric_limits<float>::quiet_NaN();
    EXPECT_FALSE(std::isfinite(optimizer.step(0.1, 1)));
    EXPECT_TRUE(at::equal(row.weights(), before));
    EXPECT_EQ(optimizer.steps, 0);
    EXPECT_EQ(optimizer.mean().abs().sum().item<double>(), 0);
    EXPECT_EQ(row.gradients().abs().sum().item<double>(), 0);
  });
}

TEST(LearningRate, RisesThenFallsAsAsked) {
  ScheduleOptions options{.kind = "cosine", .learning_rate = 2, .floor = 0.1, .warmup = 10, .steps = 110};
  EXPECT_DOUBLE_EQ(learning_rate(options, 0), 0.2);
  EXPECT_DOUBLE_EQ(learning_rate(options, 9), 2);
  EXPECT_DOUBLE_EQ(learning_rate(options, 10), 2);
  EXPECT_DOUBLE_EQ(learning_rate(options, 60), 2 * 0.55);
  EXPECT_DOUBLE_EQ(learning_rate(options, 110), 0.2);
  EXPECT_DOUBLE_EQ(learning_rate(options, 500), 0.2);
  options.kind = "linear";
  EXPECT_DOUBLE_EQ(learning_rate(options, 35), 2 * (1 - 0.9 * 0.25));
  options.kind = "constant";
  EXPECT_DOUBLE_EQ(learning_rate(options, 110), 2);
  options.warmup = 0;
  EXPECT_DOUBLE_EQ(learning_rate(options, 0), 2);
  options.kind = "square";
  EXPECT_NE(error_of([&] { learning_rate(options, 50); }).find("cosine, linear, constant"), std::string::npos);
}

}  // namespace
}  // namespace startrail

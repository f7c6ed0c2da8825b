// Each operation against plain differentiable code that saves everything.
#include "startrail/train/model/ops.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <functional>

namespace startrail {
namespace {

using Inputs = std::vector<at::Tensor>;
using Code = std::function<at::Tensor(const Inputs&)>;

// Result and gradients of all inputs for the same gradient of the result.
Inputs differentiate(const Code& code, const Inputs& inputs, at::ScalarType type) {
  Inputs leaves;
  for (const at::Tensor& input : inputs) leaves.push_back(input.to(type).detach().requires_grad_());
  const at::Tensor result = code(leaves);
  at::manual_seed(9);
  const at::Tensor direction = at::randn(result.sizes(), at::kDouble).to(type);
  Inputs all = torch::autograd::grad({result}, leaves, {direction});
  all.insert(all.begin(), result);
  return all;
}

// float32 against float64 plain code; bfloat16 within its rounding of that.
void expect_same(const Code& ours, const Code& plain, const Inputs& inputs) {
  const Inputs exact = differentiate(plain, inputs, at::kDouble);
  for (const auto& [type, limit] : {std::pair(at::kFloat, 2e-6), std::pair(at::kBFloat16, 2e-2)}) {
    const Inputs got = differentiate(ours, inputs, type);
    ASSERT_EQ(got.size(), exact.size());
    for (size_t i = 0; i < got.size(); ++i) {
      EXPECT_EQ(got[i].scalar_type(), type) << i;
      EXPECT_LT((got[i].to(at::kDouble) - exact[i]).norm().item<double>(), limit * exact[i].norm().item<double>())
          << type << " " << i;
    }
  }
}

at::Tensor random(std::initializer_list<int64_t> shape) {
  // Exact in bfloat16, so that all types start from the same numbers.
  return at::randn(shape).to(at::kBFloat16).to(at::kDouble);
}

TEST(Ops, DenseIsLikePlainCode) {
  at::manual_seed(1);
  expect_same([](const Inputs& x) { return dense(x[0], x[1]); },
              [](const Inputs& x) { return at::matmul(x[0], x[1].t()); }, {random({37, 24}), random({50, 24})});
}

TEST(Ops, RmsNormIsLikePlainCode) {
  at::manual_seed(2);
  expect_same([](const Inputs& x) { return rms_norm(x[0], x[1], 1e-3); },
              [](const Inputs& x) { return x[0] * at::rsqrt(x[0].square().mean(-1, true) + 1e-3) * x[1]; },
              {random({37, 24}), random({24})});
}

TEST(Ops, SwigluIsLikePlainCode) {
  at::manual_seed(3);
  expect_same([](const Inputs& x) { return swiglu(x[0], x[1]); },
              [](const Inputs& x) { return x[0] * at::sigmoid(x[0]) * x[1]; }, {random({37, 24}), random({37, 24})});
}

TEST(Ops, RotationIsLikePlainCodeAndKeepsLengths) {
  at::manual_seed(4);
  const at::Tensor angles = at::randn({37, 4}, at::kDouble) * 3;
  const Rotation rotation{angles.cos().to(at::kFloat), angles.sin().to(at::kFloat)};
  expect_same([&](const Inputs& x) { return rotate(x[0], rotation); },
              [&](const Inputs& x) {
                const at::Tensor a = x[0].narrow(2, 0, 4), b = x[0].narrow(2, 4, 4);
                const at::Tensor cos = angles.cos().unsqueeze(1), sin = angles.sin().unsqueeze(1);
                return at::cat({a * cos - b * sin, b * cos + a * sin}, 2);
              },
              {random({37, 3, 8})});
  const at::Tensor x = at::randn({37, 3, 8});
  EXPECT_TRUE(at::allclose(rotate(x, rotation).norm(2, 2), x.norm(2, 2)));
}

TEST(Ops, EmbeddingAddsUpRowsUsedOften) {
  at::manual_seed(5);
  const at::Tensor tokens = at::randint(0, 3, {4000}, at::kLong);  // thousands of additions a row: no sum for bfloat16
  expect_same([&](const Inputs& x) { return embed(tokens, x[0]); },
              [&](const Inputs& x) { return x[0].index_select(0, tokens); }, {random({5, 8})});
}

TEST(Ops, LossInChunksIsTheWholeLoss) {
  at::manual_seed(6);
  at::Tensor targets = at::randint(0, 50, {37}, at::kLong);
  targets.narrow(0, 10, 5).fill_(-1);  // no target
  const Inputs inputs{random({37, 24}), random({50, 24})};
  const Code plain = [&](const Inputs& x) {
    const at::Tensor each =
        -at::log_softmax(at::matmul(x[0], x[1].t()), 1).gather(1, targets.clamp_min(0).unsqueeze(1));
    return (each.squeeze(1) * (targets >= 0)).sum();
  };
  const Inputs exact = differentiate(plain, inputs, at::kDouble);
  for (int64_t chunk : {1, 7, 37, 1000})
    for (const auto& [type, limit] : {std::pair(at::kFloat, 2e-6), std::pair(at::kBFloat16, 2e-2)}) {
      Inputs leaves;
      for (const at::Tensor& input : inputs) leaves.push_back(input.to(type).detach().requires_grad_());
      const TokenLoss loss = head_loss(leaves[0], leaves[1], targets, chunk);
      at::manual_seed(9);
      const double direction = at::randn({}, at::kDouble).item<double>();
      const Inputs got = torch::autograd::grad({loss.sum}, leaves, {at::full({}, direction, at::kDouble)});
      EXPECT_NEAR(loss.sum.item<double>(), exact[0].item<double>(), limit * exact[0].item<double>());
      EXPECT_NEAR(loss.each.sum().item<double>(), loss.sum.item<double>(), 1e-3);
      EXPECT_EQ(loss.each.narrow(0, 10, 5).abs().sum().item<double>(), 0);
      for (size_t i = 0; i < got.size(); ++i)
        EXPECT_LT((got[i].to(at::kDouble) - exact[i + 1]).norm().item<double>(),
                  limit * exact[i + 1].norm().item<double>())
            << type << " chunk " << chunk;
      const at::NoGradGuard no_grad;
      EXPECT_EQ(head_loss(leaves[0], leaves[1], targets, chunk).sum.item<double>(), loss.sum.item<double>());
    }
}

}  // namespace
}  // namespace startrail

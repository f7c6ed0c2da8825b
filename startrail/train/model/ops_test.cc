// Each operation against plain differentiable code that saves everything.
#include "startrail/train/model/ops.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <cmath>
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

// Against float64 plain code: float32, bfloat16 within its rounding, and float64, which is computed in float32 by the
// path for other devices.
void expect_same(const Code& ours, const Code& plain, const Inputs& inputs) {
  const Inputs exact = differentiate(plain, inputs, at::kDouble);
  for (const auto& [type, limit] :
       {std::pair(at::kFloat, 2e-6), std::pair(at::kBFloat16, 2e-2), std::pair(at::kDouble, 2e-6)}) {
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

// Widths with and without a rest after whole vectors; rows that one thread takes, and rows for many.
const std::pair<int64_t, int64_t> kSizes[] = {{1, 3}, {37, 24}, {5, 13}, {129, 100}, {2000, 40}};

TEST(Ops, RmsNormIsLikePlainCode) {
  at::manual_seed(2);
  const Code ours = [](const Inputs&x) { return rms_norm(x[0], x[1], 1e-3); },
             plain = [](const Inputs&x) { return x[0] * at::rsqrt(x[0].square().mean(-1, true) + 1e-3) * x[1]; };
  for (const auto& [rows, dim] : kSizes) expect_same(ours, plain, {random({rows, dim}), random({dim})});
  const auto turned = [](const Code& code) { return [&](const Inputs& x) { return code({x[0].t(), x[1]}); }; };
  expect_same(turned(ours), turned(plain), {random({24, 37}), random({24})});
}

TEST(Ops, SwigluIsLikePlainCode) {
  at::manual_seed(3);
  const Code ours = [](const Inputs&x) { return swiglu(x[0], x[1]); },
             plain = [](const Inputs&x) { return x[0] * at::sigmoid(x[0]) * x[1]; };
  for (const auto& [rows, dim] : kSizes) expect_same(ours, plain, {random({rows, dim}) * 4, random({rows, dim})});
  const auto turned = [](const Code& code) { return [&](const Inputs& x) { return code({x[0].t(), x[1]}); }; };
  expect_same(turned(ours), turned(plain), {random({24, 37}), random({37, 24})});
}

TEST(Ops, SwigluKeepsHugeValuesAndNaN) {
  const at::Tensor gate = at::tensor({-1e30, -200.0, -88.0, 88.0, 200.0, 1e30, std::nan("")}, at::kFloat);
  const at::Tensor got = swiglu(gate, at::ones_like(gate));
  EXPECT_LT(got.narrow(0, 1, 2).abs().max().item<float>(), 1e-30);
  EXPECT_TRUE(at::equal(got.narrow(0, 3, 3), gate.narrow(0, 3, 3)));
  EXPECT_TRUE(at::isfinite(got.narrow(0, 0, 6)).all().item<bool>());
  EXPECT_TRUE(got.isnan()[6].item<bool>());
}

TEST(Ops, RotationIsLikePlainCodeAndKeepsLengths) {
  at::manual_seed(4);
  for (const auto& [rows, half] : kSizes) {
    const at::Tensor angles = at::randn({rows, half}, at::kDouble) * 3;
    const Rotation rotation{angles.cos().to(at::kFloat), angles.sin().to(at::kFloat)};
    const Code ours = [&](const Inputs&x) { return rotate(x[0], rotation); }, plain = [&](const Inputs&x) {
      const at::Tensor a = x[0].chunk(2, 2)[0], b = x[0].chunk(2, 2)[1];
      const at::Tensor cos = angles.cos().unsqueeze(1), sin = angles.sin().unsqueeze(1);
      return at::cat({a * cos - b * sin, b * cos + a * sin}, 2);
    };
    expect_same(ours, plain, {random({rows, 3, 2 * half})});
    for (int64_t other : {1, 2}) {  // heads first, and dim not dense
      const auto turned = [&](const Code& code) {
        return [&](const Inputs& x) { return code({x[0].transpose(0, other)}); };
      };
      expect_same(turned(ours), turned(plain), {random({rows, 3, 2 * half}).transpose(0, other).contiguous()});
    }
    const at::Tensor x = at::randn({rows, 3, 2 * half});
    EXPECT_TRUE(at::allclose(rotate(x, rotation).norm(2, 2), x.norm(2, 2)));
  }
}

// Threads share rows, but no sum.
TEST(Ops, GiveTheSameBitsWithAnyNumberOfThreads) {
  at::manual_seed(7);
  const Inputs inputs{random({3000, 64}), random({64}), random({3000, 64})};
  const Code code = [](const Inputs& x) { return swiglu(rms_norm(x[0], x[1], 1e-5), x[2]); };
  const int before = at::get_num_threads();
  at::set_num_threads(1);
  const Inputs one = differentiate(code, inputs, at::kFloat);
  at::set_num_threads(3);
  const Inputs three = differentiate(code, inputs, at::kFloat);
  at::set_num_threads(before);
  for (size_t i = 0; i < one.size(); ++i) EXPECT_TRUE(at::equal(one[i], three[i])) << i;
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

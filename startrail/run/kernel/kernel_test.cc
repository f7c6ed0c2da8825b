#include "startrail/run/kernel/kernel.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <memory>

#include "startrail/base/error.h"
#include "startrail/run/memory.h"

namespace startrail {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

struct Case {
  Mask mask;
  Order order = Order::zigzag;
  int64_t tokens = 100, heads = 4, key_heads = 2, dim = 16, batch = 2;
  double gain = 1;  // of q: > 1 makes scores large
  double dout_gain = 1;
};

struct Results {
  at::Tensor out, lse, dq, dk, dv;
};

// Attends query chunks {1, 2} of 4 to all key chunks, one block of two after the other, so that merging is part of it.
Results run(const Kernel& kernel, const Case& c, at::ScalarType type, at::ScalarType accumulator) {
  at::manual_seed(7);
  const Layout layout{c.order, c.tokens, 4};
  const std::vector<int> query_chunks{1, 2};
  const int64_t queries = chunk_tokens(layout, query_chunks);
  const Band band(c.mask, c.tokens, c.tokens);
  const double scale = 1 / std::sqrt(static_cast<double>(c.dim));
  const auto draw = [&](int64_t heads, int64_t tokens, double gain) {
    return (at::randn({c.batch, heads, tokens, c.dim}) * gain).to(at::kBFloat16).to(type);
  };
  const at::Tensor q = draw(c.heads, queries, c.gain), dout = draw(c.heads, queries, c.dout_gain);
  std::vector<AttendInput> inputs;
  for (const std::vector<int>& keys : {std::vector<int>{0, 3}, std::vector<int>{2, 1}}) {
    const int64_t count = chunk_tokens(layout, keys);
    inputs.push_back({q, draw(c.key_heads, count, 1), draw(c.key_heads, count, 1), chunk_pieces(layout, query_chunks),
                      chunk_pieces(layout, keys), &band, scale});
  }
  const auto wide = at::TensorOptions(accumulator);
  Results results;
  results.out = at::zeros({c.batch, c.heads, queries, c.dim}, wide);
  results.lse = at::full({c.batch, c.heads, queries}, -kInfinity, wide);
  Running running{results.out, results.lse};
  for (const AttendInput& input : inputs) kernel.attend(input, running);
  const at::Tensor delta = (dout.to(accumulator) * results.out).sum(-1);
  results.dq = at::zeros(q.sizes(), wide);
  std::vector<at::Tensor> dk, dv;
  for (const AttendInput& input : inputs) {
    dk.push_back(at::zeros(input.k.sizes(), wide));
    dv.push_back(at::zeros(input.v.sizes(), wide));
    Gradients gradients{results.dq, dk.back(), dv.back()};
    kernel.attend_backward({input, dout, results.lse, delta}, gradients);
  }
  results.dk = at::cat(dk, 2);
  results.dv = at::cat(dv, 2);
  return results;
}

void expect_close(const at::Tensor& got, const at::Tensor& truth, double tolerance, const std::string& what) {
  const double size = std::max(1e-30, truth.abs().max().item<double>());
  EXPECT_LE((got.to(at::kDouble) - truth).abs().max().item<double>() / size, tolerance) << what;
}

void compare(const Case& c, at::ScalarType type, double tolerance, const std::string& what) {
  const Results truth = run(reference_kernel(), c, at::kDouble, at::kDouble);
  const Results got = run(aten_kernel(), c, type, at::kFloat);
  const std::string label = cat(what, ", ", to_text(c.mask), ", ", to_text(c.order), ", tokens ", c.tokens);
  expect_close(got.out, truth.out, tolerance, label + ", out");
  EXPECT_TRUE(at::equal(got.lse == -kInfinity, truth.lse == -kInfinity)) << label;
  expect_close(got.lse.masked_fill(got.lse == -kInfinity, 0), truth.lse.masked_fill(truth.lse == -kInfinity, 0),
               tolerance, label + ", lse");
  expect_close(got.dq, truth.dq, tolerance, label + ", dq");
  expect_close(got.dk, truth.dk, tolerance, label + ", dk");
  expect_close(got.dv, truth.dv, tolerance, label + ", dv");
}

std::vector<Mask> masks_of(int64_t tokens) {
  const int64_t third = tokens / 3;
  return {{},
          {.causal = true},
          {.window = 9},
          {.causal = true, .window = 5},
          {.documents = {third, 1, tokens - third - 1}},
          {.causal = true, .documents = {third, 1, tokens - third - 1}},
          {.causal = true, .prefix = third},
          {.causal = true, .padding = third},
          {.causal = true, .window = 7, .documents = {third, tokens - third - 4}, .padding = 4}};
}

TEST(AtenKernel, MatchesTheReferenceForEveryMaskAndLayout) {
  for (Order order : {Order::contiguous, Order::zigzag, Order::striped})
    for (int64_t tokens : {17, 100})
      for (const Mask& mask : masks_of(tokens)) {
        compare({.mask = mask, .order = order, .tokens = tokens}, at::kFloat, 2e-6, "float32");
        compare({.mask = mask, .order = order, .tokens = tokens}, at::kBFloat16, 2e-6, "bfloat16, computed in float32");
      }
}

TEST(AtenKernel, MatchesForOddDimsAndHeads) {
  for (int64_t dim : {1, 3, 8, 20, 64, 128, 256})
    compare({.mask = {.causal = true}, .dim = dim}, at::kFloat, 4e-6, cat("dim ", dim));
  for (int64_t key_heads : {1, 2, 3, 6})
    compare({.mask = {.causal = true}, .heads = 6, .key_heads = key_heads}, at::kFloat, 2e-6,
            cat("key heads ", key_heads));
}

TEST(AtenKernel, MatchesOnLongPiecesThatAreCut) {
  for (const Mask& mask : masks_of(2400))
    compare({.mask = mask, .tokens = 2400, .heads = 1, .key_heads = 1, .dim = 8, .batch = 1}, at::kFloat, 4e-6, "long");
}

TEST(AtenKernel, KeepsTinyGradients) {
  compare({.mask = {.causal = true}, .dout_gain = 1e-25}, at::kFloat, 4e-6, "dout 1e-25");
  compare({.mask = {.causal = true}, .dout_gain = 0}, at::kFloat, 4e-6, "dout 0");
}

TEST(AtenKernel, StaysFiniteForLargeScores) {
  const Case c{.mask = {.causal = true}, .gain = 1e4};
  const Results got = run(aten_kernel(), c, at::kFloat, at::kFloat);
  const Results truth = run(reference_kernel(), c, at::kDouble, at::kDouble);
  for (const at::Tensor& t : {got.out, got.dq, got.dk, got.dv}) EXPECT_TRUE(at::isfinite(t).all().item<bool>());
  expect_close(got.out, truth.out, 1e-2, "out");
}

TEST(Kernel, TakesEmptySides) {
  const Band band({}, 4, 4);
  for (const Kernel* kernel : {&aten_kernel(), &reference_kernel()}) {
    const at::Tensor none = at::zeros({1, 2, 0, 8}), some = at::ones({1, 2, 4, 8});
    Running running{at::zeros({1, 2, 4, 8}), at::full({1, 2, 4}, -kInfinity)};
    kernel->attend({some, none, none, {{0, 4, 1}}, {}, &band, 1}, running);
    EXPECT_EQ(running.out.abs().max().item<double>(), 0);
    Gradients gradients{at::zeros({1, 2, 4, 8}), at::zeros({1, 2, 0, 8}), at::zeros({1, 2, 0, 8})};
    kernel->attend_backward({{some, none, none, {{0, 4, 1}}, {}, &band, 1}, some, running.lse, at::zeros({1, 2, 4})},
                            gradients);
    EXPECT_EQ(gradients.dq.abs().max().item<double>(), 0);
  }
}

TEST(Merge, IsStableForAnyLse) {
  const auto merged = [](double lse_a, double lse_b) {
    Running running{at::full({1, 1, 1, 2}, 1.0), at::full({1, 1, 1}, lse_a)};
    if (lse_a == -kInfinity) running.out.zero_();
    merge_partial(running, at::full({1, 1, 1, 2}, lse_b == -kInfinity ? 0.0 : 3.0), at::full({1, 1, 1}, lse_b));
    return std::pair(running.out[0][0][0][0].item<double>(), running.lse[0][0][0].item<double>());
  };
  EXPECT_EQ(merged(-kInfinity, -kInfinity), std::pair(0.0, -kInfinity));
  EXPECT_EQ(merged(2, -kInfinity), std::pair(1.0, 2.0));
  EXPECT_EQ(merged(-kInfinity, 2), std::pair(3.0, 2.0));
  for (double lse : {0.0, 1e4, -1e4, 3e38, -3e38}) {
    EXPECT_NEAR(merged(lse, lse).first, 2, 1e-6) << lse;
    EXPECT_NEAR(merged(lse, lse).second, lse + std::log(2.0), std::abs(lse) * 1e-6 + 1e-6) << lse;
  }
  EXPECT_EQ(merged(1e4, -1e4), std::pair(1.0, 1e4));
}

TEST(AtenKernel, NeedsTheScratchItStates) {
  const Band band(Mask{}, 800, 500);
  for (int64_t batch : {1, 3})
    for (int64_t queries : {100, 300, 800})
      for (at::ScalarType type : {at::kFloat, at::kBFloat16}) {
        const int64_t heads = 4, key_heads = 2, keys = 500, dim = 32;
        // Planes of blocks, as the executor lays them out.
        const auto planes = [&](int64_t tokens, int64_t heads_of) {
          return at::randn({tokens, 2, batch, heads_of, dim}).to(type);
        };
        const auto plane = [](const at::Tensor& t, int64_t i) { return t.select(1, i).permute({1, 2, 0, 3}); };
        const auto zeros = [&](int64_t heads_of, int64_t tokens) { return at::zeros({batch, heads_of, tokens, dim}); };
        const at::Tensor q = planes(queries, heads), kv = planes(keys, key_heads),
                         row = at::zeros({batch, heads, queries});
        const AttendInput input{plane(q, 0), plane(kv, 0), plane(kv, 1), {{0, queries}}, {{0, keys}}, &band, 1};
        Running running{zeros(heads, queries), at::full({batch, heads, queries}, -kInfinity)};
        Gradients gradients{zeros(heads, queries), zeros(key_heads, keys), zeros(key_heads, keys)};
        for (bool backward : {false, true}) {
          const auto account = std::make_shared<MemoryAccount>();
          const MemoryScope scope(account);
          if (backward)
            aten_kernel().attend_backward({input, plane(q, 1), row, row}, gradients);
          else
            aten_kernel().attend(input, running);
          const auto stated = static_cast<double>(aten_scratch_bytes(
              {batch, heads, key_heads, queries, keys, dim, static_cast<int>(c10::elementSize(type)), backward},
              at::get_num_threads()));
          const double ratio = static_cast<double>(account->peak_bytes) / stated;
          EXPECT_TRUE(ratio > 0.8 && ratio <= 1.001)
              << "needs " << ratio << " of what it states: batch " << batch << ", " << queries << " queries, " << type
              << (backward ? ", backward" : ", forward");
        }
      }
}

TEST(Kernel, IsChosenByNameTypeAndDevice) {
  EXPECT_EQ(choose_kernel("auto", at::kFloat, at::kCPU, 64).name(), "aten");
  EXPECT_EQ(choose_kernel("auto", at::kDouble, at::kCPU, 64).name(), "reference");
  EXPECT_EQ(choose_kernel("auto", at::kFloat, at::Device(at::kCUDA, 0), 64).name(), "reference");
  EXPECT_EQ(choose_kernel("reference", at::kFloat, at::kCPU, 64).name(), "reference");
  EXPECT_THROW(choose_kernel("aten", at::kDouble, at::kCPU, 64), UserError);
  try {
    choose_kernel("fast", at::kFloat, at::kCPU, 64);
    FAIL();
  } catch (const UserError& error) {
    EXPECT_STREQ(error.what(), "kernel 'fast' is not known; valid kernels: auto, aten, reference");
  }
}

}  // namespace
}  // namespace startrail

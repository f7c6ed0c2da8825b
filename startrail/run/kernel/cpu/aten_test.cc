#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "startrail/run/kernel/cpu/cpu.h"
#include "startrail/run/kernel/kernel_testing.h"

namespace startrail {
namespace {

TEST(AtenKernel, MatchesTheReferenceForEveryMaskAndLayout) {
  for (Order order : {Order::contiguous, Order::zigzag, Order::striped})
    for (int64_t tokens : {17, 100})
      for (const Mask& mask : masks_of(tokens)) {
        compare(cpu::aten_kernel(), {.mask = mask, .order = order, .tokens = tokens}, at::kFloat, 2e-6, "float32");
        compare(cpu::aten_kernel(), {.mask = mask, .order = order, .tokens = tokens}, at::kBFloat16, 2e-6,
                "bfloat16, computed in float32");
      }
}

TEST(AtenKernel, MatchesForOddDimsAndHeads) {
  for (int64_t dim : {1, 3, 8, 20, 64, 128, 256})
    compare(cpu::aten_kernel(), {.mask = {.causal = true}, .dim = dim}, at::kFloat, 4e-6, cat("dim ", dim));
  for (int64_t key_heads : {1, 2, 3, 6})
    compare(cpu::aten_kernel(), {.mask = {.causal = true}, .heads = 6, .key_heads = key_heads}, at::kFloat, 2e-6,
            cat("key heads ", key_heads));
}

TEST(AtenKernel, MatchesOnLongPiecesThatAreCut) {
  for (const Mask& mask : masks_of(2403))
    compare(cpu::aten_kernel(), {.mask = mask, .tokens = 2403, .heads = 1, .key_heads = 1, .dim = 8, .batch = 1},
            at::kFloat, 4e-6, "long");
}

TEST(AtenKernel, KeepsTinyGradients) {
  compare(cpu::aten_kernel(), {.mask = {.causal = true}, .dout_gain = 1e-25}, at::kFloat, 4e-6, "dout 1e-25");
  compare(cpu::aten_kernel(), {.mask = {.causal = true}, .dout_gain = 0}, at::kFloat, 4e-6, "dout 0");
}

TEST(AtenKernel, StaysFiniteForLargeScores) {
  const Case c{.mask = {.causal = true}, .gain = 1e4};
  const Results got = run(cpu::aten_kernel(), c, at::kFloat, at::kFloat);
  const Results truth = run(reference_kernel(), c, at::kDouble, at::kDouble);
  for (const at::Tensor& t : {got.out, got.dq, got.dk, got.dv}) EXPECT_TRUE(at::isfinite(t).all().item<bool>());
  expect_close(got.out, truth.out, 1e-2, "out");
}

}  // namespace
}  // namespace startrail

#include "startrail/run/kernel/kernel.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <cmath>
#include <memory>

#include "startrail/base/error.h"
#include "startrail/run/kernel/cpu/cpu.h"
#include "startrail/run/kernel/kernel_testing.h"
#include "startrail/run/memory.h"

namespace startrail {
namespace {

TEST(Kernel, TakesEmptySides) {
  const Band band({}, 4, 4);
  for (const Kernel* kernel : {&cpu::flash_kernel(), &cpu::aten_kernel(), &reference_kernel()}) {
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

void expect_scratch(const Kernel& kernel, double least) {
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
            kernel.attend_backward({input, plane(q, 1), row, row}, gradients);
          else
            kernel.attend(input, running);
          const auto stated = static_cast<double>(kernel.scratch_bytes(
              {batch, heads, key_heads, queries, keys, dim, static_cast<int>(c10::elementSize(type)), backward},
              at::get_num_threads()));
          const double ratio = static_cast<double>(account->peak_bytes) / stated;
          EXPECT_TRUE(ratio > least && ratio <= 1.001)
              << "needs " << ratio << " of what it states: batch " << batch << ", " << queries << " queries, " << type
              << (backward ? ", backward" : ", forward");
        }
      }
}

TEST(AtenKernel, NeedsTheScratchItStates) { expect_scratch(cpu::aten_kernel(), 0.8); }
TEST(FlashKernel, NeedsTheScratchItStates) { expect_scratch(cpu::flash_kernel(), 0.8); }
TEST(FlashKernel, NeedsNoneForNothing) {
  EXPECT_EQ(cpu::flash_kernel().scratch_bytes({1, 4, 2, 0, 8, 64, 4, false}, 2), 0);
  EXPECT_EQ(cpu::flash_kernel().scratch_bytes({1, 4, 2, 8, 0, 64, 4, true}, 2), 0);
}

TEST(Kernel, IsChosenByNameTypeAndDevice) {
  EXPECT_EQ(choose_kernel("auto", at::kFloat, at::kCPU, 64).name(), cpu::level_names().size() > 1 ? "flash" : "aten");
  EXPECT_EQ(choose_kernel("flash", at::kBFloat16, at::kCPU, 64).name(), "flash");
  EXPECT_EQ(choose_kernel("auto", at::kDouble, at::kCPU, 64).name(), "reference");
  EXPECT_EQ(choose_kernel("auto", at::kFloat, at::Device(at::kCUDA, 0), 64).name(), "reference");
  EXPECT_EQ(choose_kernel("reference", at::kFloat, at::kCPU, 64).name(), "reference");
  EXPECT_THROW(choose_kernel("aten", at::kDouble, at::kCPU, 64), UserError);
  try {
    choose_kernel("fast", at::kFloat, at::kCPU, 64);
    FAIL();
  } catch (const UserError& error) {
    EXPECT_STREQ(error.what(), "kernel 'fast' is not known; valid kernels: auto, flash, aten, reference");
  }
}

}  // namespace
}  // namespace startrail

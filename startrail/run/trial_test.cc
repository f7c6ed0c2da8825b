#include "startrail/run/trial.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace startrail {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

Answer changed(const Answer& answer, double factor) { return {answer.out, answer.dq * factor, answer.dk, answer.dv}; }

TEST(Trial, JudgesByPyTorchAndNotByOurselves) {
  const Sample sample = make_sample({.heads = 2, .key_heads = 2, .dim = 8}, 60, 60);
  const Mask mask{.causal = true};
  const Answer truth = exact_answer(sample, mask, 0), pytorch = pytorch_answer(sample, mask, 0);
  const Errors limits = tolerance(at::kFloat, compare(pytorch, truth, sample, 0));
  EXPECT_TRUE(within(compare(pytorch, truth, sample, 0), limits));
  EXPECT_FALSE(within(compare(changed(pytorch, 1.5), truth, sample, 0), limits));
  EXPECT_FALSE(within(compare(changed(pytorch, 1 + 3e-5), truth, sample, 0), limits));
  EXPECT_FALSE(within(compare(changed(pytorch, std::nan("")), truth, sample, 0), limits));
  // Even when the yardstick itself is broken.
  EXPECT_FALSE(within({kInfinity, 0, 0, 0}, tolerance(at::kFloat, {kInfinity, kInfinity, kInfinity, kInfinity})));
}

TEST(Trial, KnowsPyTorchsAnswerForEveryMask) {
  const Sample sample = make_sample({.heads = 4, .key_heads = 2, .dim = 8}, 50, 50);
  for (const Mask& mask : {Mask{}, Mask{.causal = true}, Mask{.window = 7}, Mask{.causal = true, .documents = {20, 30}},
                           Mask{.causal = true, .prefix = 9}, Mask{.causal = true, .padding = 11}}) {
    const Errors errors = compare(pytorch_answer(sample, mask, 0), exact_answer(sample, mask, 0), sample, 0);
    EXPECT_TRUE(within(errors, {3e-6, 3e-6, 3e-6, 3e-6})) << to_text(mask);
  }
}

TEST(Trial, MeasuresAVanishingGradientAgainstItsTerms) {
  // A query that sees one key: dq and dk are zero but for rounding.
  const Sample sample = make_sample({.heads = 2, .key_heads = 2, .dim = 8}, 5, 5);
  const Mask mask{.window = 1};
  const Answer truth = exact_answer(sample, mask, 0);
  AttentionOptions options;
  options.tokens = 5;
  options.mask = mask;
  const Answer answer = run_trial(sample, options, 1).answer;
  EXPECT_TRUE(within(compare(answer, truth, sample, 0), tolerance(at::kFloat, {})));
  Answer wrong = answer;
  wrong.dq = answer.dq + 1e-3;
  EXPECT_FALSE(within(compare(wrong, truth, sample, 0), tolerance(at::kFloat, {})));
}

}  // namespace
}  // namespace startrail

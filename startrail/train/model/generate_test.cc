#include "startrail/train/model/generate.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>

#include <cmath>
#include <set>

#include "startrail/base/testing.h"
#include "startrail/run/comm/ranks.h"
#include "startrail/train/model/parameters.h"

namespace startrail {
namespace {

using Tokens = std::vector<int64_t>;

at::Generator generator(uint64_t seed) { return at::make_generator<at::CPUGeneratorImpl>(seed); }

Tokens draw_many(const at::Tensor& logits, const SampleOptions& options, int count, uint64_t seed = 1) {
  at::Generator random = generator(seed);
  Tokens drawn;
  for (int i = 0; i < count; ++i) drawn.push_back(draw(logits, options, random));
  return drawn;
}

// A small model with larger weights than a new one's, so that every token matters to the next.
std::unique_ptr<Llama> make_model(const std::string& kind = "llama", int64_t window = 0,
                                  const std::vector<bool>& windowed = {}) {
  auto model = std::make_unique<Llama>(LlamaConfig{.vocabulary = 40,
                                                   .dim = 16,
                                                   .layers = 2,
                                                   .heads = 4,
                                                   .key_heads = 2,
                                                   .head_dim = 4,
                                                   .hidden = 24,
                                                   .kind = kind,
                                                   .window = window,
                                                   .windowed = windowed});
  ParameterRow row(*model, at::kFloat);
  row.weights().copy_(initial_values(*model, 3, {0, row.size()}) * 5);
  return model;
}

// The logits of every token, [tokens, vocabulary], as training computes them: on one rank, without a cache.
at::Tensor all_logits(const Llama& model, const Tokens& tokens) {
  at::Tensor logits;
  run_ranks(1, 1, [&](const std::shared_ptr<Group>& group) {
    const at::NoGradGuard no_grad;
    AttentionOptions options;
    options.grid = parse_grid("ring", 1);
    Example example;
    example.tokens = static_cast<int64_t>(tokens.size());
    example.mask.causal = true;
    example.input = at::tensor(tokens, at::kLong);
    logits = model.logits(example, make_sequence(example, options, group, false));
  });
  return logits;
}

Tokens generated(const Llama& model, const Tokens& prompt, const SampleOptions& options) {
  Tokens tokens;
  generate(model, prompt, options, [&](int64_t token) {
    tokens.push_back(token);
    return true;
  });
  return tokens;
}

const at::Tensor kLogits = at::tensor({0.5, 2.0, -1.0, 1.5, 0.0}, at::kFloat);

TEST(Draw, TakesTheLikeliestWhenNothingElseIsLeft) {
  for (const SampleOptions& options : {SampleOptions{.temperature = 0}, SampleOptions{.temperature = 5, .top_k = 1},
                                       SampleOptions{.temperature = 5, .top_p = 1e-9},
                                       SampleOptions{.temperature = 1e-3}, SampleOptions{.temperature = 1e-320}})
    EXPECT_EQ(draw_many(kLogits, options, 50), Tokens(50, 1)) << options.temperature << " " << options.top_k;
}

TEST(Draw, NeverTakesWhatIsCutOff) {
  const auto drawn = [](const SampleOptions& options) {
    const Tokens tokens = draw_many(kLogits, options, 500);
    return std::set<int64_t>(tokens.begin(), tokens.end());
  };
  EXPECT_EQ(drawn({.temperature = 5}), (std::set<int64_t>{0, 1, 2, 3, 4}));
  EXPECT_EQ(drawn({.temperature = 5, .top_k = 2}), (std::set<int64_t>{1, 3}));
  EXPECT_EQ(drawn({.temperature = 5, .top_k = 3}), (std::set<int64_t>{0, 1, 3}));
  EXPECT_EQ(drawn({.temperature = 5, .top_k = 99}), (std::set<int64_t>{0, 1, 2, 3, 4}));
  // The chances are 0.489, 0.297, 0.109, 0.066, 0.024 at temperature 1: the token that crosses top_p is the last taken.
  EXPECT_EQ(drawn({.temperature = 1, .top_p = 0.48}), (std::set<int64_t>{1}));
  EXPECT_EQ(drawn({.temperature = 1, .top_p = 0.5}), (std::set<int64_t>{1, 3}));
  EXPECT_EQ(drawn({.temperature = 1, .top_p = 0.8}), (std::set<int64_t>{0, 1, 3}));
  // Of the two that top_k leaves, the first has 0.62.
  EXPECT_EQ(drawn({.temperature = 1, .top_k = 2, .top_p = 0.6}), (std::set<int64_t>{1}));
}

TEST(Draw, FollowsTheSoftmax) {
  constexpr int kDraws = 10000;
  for (const double temperature : {0.5, 1.0, 2.0}) {
    std::vector<double> share(5);
    for (int64_t token : draw_many(kLogits, {.temperature = temperature}, kDraws)) share[token] += 1.0 / kDraws;
    const at::Tensor chances = (kLogits.to(at::kDouble) / temperature).softmax(0);
    for (int64_t i = 0; i < 5; ++i)  // five standard deviations are 0.025
      EXPECT_NEAR(share[i], chances[i].item<double>(), 0.025) << temperature << " " << i;
  }
}

TEST(Draw, RepeatsWithTheSeed) {
  const SampleOptions options{.temperature = 2};
  EXPECT_EQ(draw_many(kLogits, options, 100, 7), draw_many(kLogits, options, 100, 7));
  EXPECT_NE(draw_many(kLogits, options, 100, 7), draw_many(kLogits, options, 100, 8));
}

// Given in pieces, the last token of each has the logits it has in the whole.
void expect_pieces_like_the_whole(const Llama& model, const Tokens& tokens, const at::Tensor& whole,
                                  const std::vector<int64_t>& pieces) {
  KeyValueCache cache = model.make_cache(static_cast<int64_t>(tokens.size()) + 3);
  int64_t seen = 0;
  for (int64_t count : pieces) {
    const at::Tensor piece = at::tensor(tokens, at::kLong).narrow(0, seen, count);
    const at::Tensor logits = model.next_logits(piece, cache);
    seen += count;
    EXPECT_EQ(cache.tokens, seen);
    EXPECT_TRUE(at::allclose(logits, whole[seen - 1], 1e-4, 1e-4)) << model.shape().kind << " after " << seen;
  }
}

TEST(Generate, TheCacheChangesNothing) {
  const Tokens tokens{5, 17, 0, 39, 22, 22, 8, 31, 2};
  for (const auto& model : {make_model(), make_model("mistral", 3), make_model("qwen2", 1, {true, false}),
                            make_model("qwen3", 4, {false, true}), make_model("mistral", 100)}) {
    const at::Tensor whole = all_logits(*model, tokens);
    for (const std::vector<int64_t>& pieces : {std::vector<int64_t>{9}, {1, 1, 1, 1, 1, 1, 1, 1, 1}, {4, 1, 3, 1}})
      expect_pieces_like_the_whole(*model, tokens, whole, pieces);
  }
  const auto model = make_model();
  const at::Tensor whole = all_logits(*model, tokens);
  EXPECT_FALSE(at::allclose(all_logits(*model, {6, 17, 0, 39, 22, 22, 8, 31, 2})[8], whole[8], 1e-2, 1e-2));
}

TEST(Generate, TakesLongPromptsInPiecesOfItsOwn) {
  Tokens tokens;
  for (int64_t i = 0; i < 1300; ++i) tokens.push_back(i * i % 37);
  for (const auto& model : {make_model(), make_model("qwen2", 600, {false, true})}) {
    const at::Tensor whole = all_logits(*model, tokens);
    for (const std::vector<int64_t>& pieces : {std::vector<int64_t>{1300}, {100, 1199, 1}})
      expect_pieces_like_the_whole(*model, tokens, whole, pieces);
  }
}

TEST(Generate, GreedilyIsLikeRecomputingEveryToken) {
  const auto model = make_model();
  for (const Tokens& prompt : {Tokens{7}, Tokens{1, 30, 12, 5, 5}}) {
    Tokens all = prompt, expected;
    for (int i = 0; i < 12; ++i) {
      expected.push_back(all_logits(*model, all)[static_cast<int64_t>(all.size()) - 1].argmax().item<int64_t>());
      all.push_back(expected.back());
    }
    EXPECT_GT(std::set<int64_t>(expected.begin(), expected.end()).size(), 2u);  // not one token forever
    EXPECT_EQ(generated(*model, prompt, {.tokens = 12, .temperature = 0}), expected);
  }
}

TEST(Generate, RepeatsWithTheSeedAndStopsWhenTold) {
  const auto model = make_model();
  const SampleOptions options{.tokens = 30, .temperature = 2, .seed = 5};
  const Tokens tokens = generated(*model, {1}, options);
  EXPECT_EQ(tokens.size(), 30u);
  EXPECT_EQ(generated(*model, {1}, options), tokens);
  EXPECT_NE(generated(*model, {1}, {.tokens = 30, .temperature = 2, .seed = 6}), tokens);
  Tokens some;
  generate(*model, {1}, options, [&](int64_t token) {
    some.push_back(token);
    return some.size() < 4;
  });
  EXPECT_EQ(some, Tokens(tokens.begin(), tokens.begin() + 4));
}

TEST(Generate, RefusesPromptsAndOptionsThatMeanNothing) {
  const auto model = make_model();
  const auto refusal = [&](const Tokens& prompt, const SampleOptions& options) {
    return error_of([&] { generated(*model, prompt, options); });
  };
  EXPECT_EQ(refusal({0, 39}, {.tokens = 1}), "no error");
  EXPECT_EQ(refusal({}, {}), "the prompt has no token: give at least one");
  EXPECT_EQ(refusal({3, 40}, {}), "token 40 of the prompt is beyond the vocabulary of 40");
  EXPECT_EQ(refusal({-1}, {}), "token -1 of the prompt is beyond the vocabulary of 40");
  EXPECT_EQ(refusal({1}, {.tokens = 0}), "0 tokens cannot be generated: give 1 or more");
  EXPECT_EQ(refusal({1}, {.temperature = -0.5}), "temperature -0.5 must be 0 or more");
  EXPECT_EQ(refusal({1}, {.temperature = std::nan("")}), "temperature nan must be 0 or more");
  EXPECT_EQ(refusal({1}, {.top_k = -1}), "top-k -1 must be 1 or more, or 0 for all");
  EXPECT_EQ(refusal({1}, {.top_p = 0}), "top-p 0 must be above 0 and at most 1");
  EXPECT_EQ(refusal({1}, {.top_p = 1.5}), "top-p 1.5 must be above 0 and at most 1");
}

}  // namespace
}  // namespace startrail

#include "startrail/train/loop/config.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <set>

#include "startrail/base/testing.h"
#include "startrail/base/threads.h"
#include "startrail/train/loop/resolve.h"

namespace startrail {
namespace {

// The model of the default configuration after `change`.
LlamaConfig model_of(const std::function<void(TrainConfig&)>& change) {
  TrainConfig config;
  change(config);
  return std::get<LlamaConfig>(model_config(config));
}

std::string model_refusal(const std::function<void(TrainConfig&)>& change) {
  return error_of([&] { model_of(change); });
}

std::string refusal(const std::function<void(TrainConfig&)>& change) {
  TrainConfig config;
  change(config);
  return error_of([&] {
    const Resolved resolved = resolve({.config = config});
    check_config(resolved.config, resolved.model);
  });
}

// Gives a setting another valid value.
void alter(const Setting& setting) {
  if (auto* flag = std::get_if<bool*>(&setting.value)) **flag = !**flag;
  if (auto* number = std::get_if<int64_t*>(&setting.value)) **number += 1;
  if (auto* number = std::get_if<double*>(&setting.value))
    **number = (**number + std::min(setting.most, **number + 1)) / 2;
  if (auto* text = std::get_if<std::string*>(&setting.value))
    **text = setting.choices.empty()            ? **text + "-other"
             : setting.choices.back() != **text ? setting.choices.back()
                                                : setting.choices.front();
}

TEST(TrainConfig, DefaultsAreValid) {
  EXPECT_EQ(refusal([](TrainConfig&) {}), "no error");
  TrainConfig config, again;
  const std::string text = to_toml(settings_of(config));
  read_toml_text(settings_of(again), text, "defaults");
  EXPECT_EQ(to_toml(settings_of(again)), text);
}

TEST(TrainConfig, EverySettingIsReadBackAsItWasWritten) {
  TrainConfig config, again;
  const Settings ours = settings_of(config), theirs = settings_of(again);
  ASSERT_GT(ours.size(), 40u);
  const auto values_of = [](const Settings& settings) {
    std::vector<std::string> values;
    for (const Setting& setting : settings)
      values.push_back(cat(setting.name, " ",
                           std::visit([](const auto* value) { return cat(std::hexfloat, *value); }, setting.value)));
    return values;
  };
  const std::vector<std::string> defaults = values_of(ours);
  for (const Setting& setting : ours) alter(setting);
  const std::vector<std::string> altered = values_of(ours);
  for (size_t i = 0; i < defaults.size(); ++i) EXPECT_NE(defaults[i], altered[i]);
  read_toml_text(theirs, to_toml(ours), "saved");
  EXPECT_EQ(values_of(theirs), altered);
}

TEST(TrainConfig, EverySettingHasItsOwnVariableNameAndHelp) {
  TrainConfig config;
  std::set<std::string> names;
  std::set<const void*> variables;
  for (const Setting& setting : settings_of(config)) {
    EXPECT_TRUE(names.insert(setting.name).second) << setting.name;
    EXPECT_TRUE(variables.insert(std::visit([](auto* value) -> const void* { return value; }, setting.value)).second)
        << setting.name;
    EXPECT_FALSE(setting.help.empty()) << setting.name;
    EXPECT_NE(setting.name.find('.'), std::string::npos) << setting.name;
  }
}

TEST(TrainConfig, SettingsReachTheirPlaces) {
  TrainConfig config;
  const Settings settings = settings_of(config);
  for (const char* assignment : {"train.beta1=0.1",
                                 "train.beta2=0.2",
                                 "train.eps=0.3",
                                 "train.weight_decay=0.4",
                                 "train.clip=0.5",
                                 "train.learning_rate=0.6",
                                 "train.floor=0.7",
                                 "train.warmup=8",
                                 "train.steps=9",
                                 "train.schedule=linear",
                                 "train.tokens=10",
                                 "train.seed=11",
                                 "data.path=a",
                                 "data.validation_path=b",
                                 "data.validation=0.12",
                                 "data.end_token=13",
                                 "data.documents=true",
                                 "validate.windows=14",
                                 "parallel.threads=3",
                                 "parallel.layout=striped",
                                 "parallel.backward=queries",
                                 "parallel.partial=bfloat16",
                                 "parallel.kernel=reference"})
    set_value(settings, assignment);
  const AdamWOptions adam = optimizer_options(config);
  EXPECT_EQ((std::vector{adam.beta1, adam.beta2, adam.eps, adam.weight_decay, adam.clip}),
            (std::vector{0.1, 0.2, 0.3, 0.4, 0.5}));
  const ScheduleOptions schedule = schedule_options(config);
  EXPECT_EQ(schedule.kind, "linear");
  EXPECT_EQ(schedule.learning_rate, 0.6);
  EXPECT_EQ(schedule.floor, 0.7);
  EXPECT_EQ(schedule.warmup, 8);
  EXPECT_EQ(schedule.steps, 9);
  const CorpusOptions corpus = corpus_options(config, 500);
  EXPECT_EQ(corpus.path, "a");
  EXPECT_EQ(corpus.validation_path, "b");
  EXPECT_EQ(corpus.validation, 0.12);
  EXPECT_EQ(corpus.vocabulary, 500);
  EXPECT_EQ(corpus.end_token, 13);
  const TokenSourceOptions source = source_options(config);
  EXPECT_EQ(source.tokens, 10);
  EXPECT_TRUE(source.documents);
  EXPECT_EQ(source.seed, 11u);
  EXPECT_EQ(source.validation_windows, 14);
  const AttentionOptions attention = attention_options(config, model_config(config));
  EXPECT_EQ(attention.tokens, 10);
  EXPECT_TRUE(attention.mask.causal);
  EXPECT_EQ(attention.order, Order::striped);
  EXPECT_EQ(attention.backward, Direction::queries);
  EXPECT_EQ(attention.partial, at::kBFloat16);
  EXPECT_EQ(attention.kernel, "reference");
  EXPECT_EQ(thread_count(config), 3);
  config.parallel.threads = 0;
  EXPECT_EQ(thread_count(config), available_cores());
  EXPECT_EQ(compute_type(config), at::kBFloat16);
  config.train.precision = "float32";
  EXPECT_EQ(compute_type(config), at::kFloat);
}

TEST(ModelConfig, IsThePresetWithWhatWasSet) {
  const LlamaConfig tiny = model_of([](TrainConfig&) {}), preset = llama_preset("tiny");
  EXPECT_EQ(tiny.parameters(), preset.parameters());
  EXPECT_EQ(tiny.head_dim, preset.head_dim);
  EXPECT_EQ(tiny.key_heads, preset.key_heads);
  const LlamaConfig all = model_of([](TrainConfig& c) {
    c.model = {.preset = "gpt-125m",
               .vocabulary = 100,
               .dim = 60,
               .layers = 3,
               .heads = 6,
               .kv_heads = 3,
               .head_dim = 8,
               .hidden = 50,
               .tied = "false",
               .norm_eps = 0.25,
               .rope_theta = 5000,
               .rope_scaling = "llama3",
               .rope_factor = 2,
               .rope_low_frequency = 3,
               .rope_high_frequency = 7,
               .rope_beta_fast = 11,
               .rope_beta_slow = 12,
               .rope_original_tokens = 77};
    c.train.tokens = 321;
  });
  EXPECT_EQ(all.vocabulary, 100);
  EXPECT_EQ(all.dim, 60);
  EXPECT_EQ(all.layers, 3);
  EXPECT_EQ(all.heads, 6);
  EXPECT_EQ(all.key_heads, 3);
  EXPECT_EQ(all.head_dim, 8);  // heads x head_dim may differ from dim when it was set
  EXPECT_EQ(all.hidden, 50);
  EXPECT_FALSE(all.tied);
  EXPECT_EQ(all.norm_eps, 0.25);
  EXPECT_EQ(all.rope.type, "llama3");
  EXPECT_EQ(all.rope.theta, 5000);
  EXPECT_EQ(all.rope.factor, 2);
  EXPECT_EQ(all.rope.original_tokens, 77);
  EXPECT_EQ(all.rope.low_frequency, 3);
  EXPECT_EQ(all.rope.high_frequency, 7);
  EXPECT_EQ(all.rope.beta_fast, 11);
  EXPECT_EQ(all.rope.beta_slow, 12);
  EXPECT_EQ(all.max_tokens, 321);
  EXPECT_TRUE(model_of([](TrainConfig& c) { c.model.preset = "gpt-125m"; }).tied);
  EXPECT_TRUE(model_of([](TrainConfig& c) { c.model.tied = "true"; }).tied);
}

TEST(ModelConfig, DerivesHeadsFromWhatWasSet) {
  const LlamaConfig wider = model_of([](TrainConfig& c) { c.model.dim = 64; });
  EXPECT_EQ(wider.heads, 4);
  EXPECT_EQ(wider.key_heads, 2);
  EXPECT_EQ(wider.head_dim, 16);
  const LlamaConfig more = model_of([](TrainConfig& c) { c.model.heads = 8; });
  EXPECT_EQ(more.key_heads, 8);  // one for each head, unless set
  EXPECT_EQ(more.head_dim, 16);
  EXPECT_EQ(model_of([](TrainConfig& c) { c.model.heads = 8, c.model.kv_heads = 2; }).key_heads, 2);
}

TEST(ModelConfig, RefusesShapesThatCannotBe) {
  EXPECT_EQ(model_refusal([](TrainConfig& c) { c.model.dim = 100, c.model.heads = 3; }),
            "model.heads 3 must divide model.dim 100, or set model.head_dim");
  EXPECT_EQ(model_refusal([](TrainConfig& c) { c.model.dim = 100, c.model.heads = 3, c.model.head_dim = 32; }),
            "no error");
  EXPECT_EQ(model_refusal([](TrainConfig& c) { c.model.dim = 2, c.model.heads = 4; }),
            "model.heads 4 must divide model.dim 2, or set model.head_dim");
  EXPECT_EQ(model_refusal([](TrainConfig& c) { c.model.kv_heads = 3; }), "model kv_heads 3 must divide heads 4");
  EXPECT_EQ(model_refusal([](TrainConfig& c) { c.model.heads = 128; }),
            "model head_dim 1 must be even, as rotary positions turn pairs");
  EXPECT_NE(model_refusal([](TrainConfig& c) {
              c.model.rope_scaling = "yarn";
            }).find("needs the length before stretching (rope_original_tokens"),
            std::string::npos);
  EXPECT_NE(model_refusal([](TrainConfig& c) { c.model.preset = "huge"; }).find("valid: tiny, gpt-125m"),
            std::string::npos);
}

TEST(TrainConfig, RefusesRotarySettingsWithoutEffect) {
  EXPECT_EQ(refusal([](TrainConfig& c) { c.model.rope_factor = 4; }),
            "model.rope_factor 4 has no effect with model.rope_scaling default: it needs linear, llama3 or yarn");
  const auto scaled = [](const char* type, const char* set) {
    return refusal([&](TrainConfig& c) {
      c.model.rope_scaling = type;
      c.model.rope_original_tokens = 100;
      set_value(settings_of(c), set);
    });
  };
  for (const char* set : {"model.rope_beta_fast=30", "model.rope_beta_slow=2"}) {
    EXPECT_EQ(scaled("yarn", set), "no error");
    EXPECT_NE(scaled("llama3", set).find("it needs yarn"), std::string::npos);
  }
  for (const char* set : {"model.rope_low_frequency=2", "model.rope_high_frequency=5"}) {
    EXPECT_EQ(scaled("llama3", set), "no error");
    EXPECT_NE(scaled("linear", set).find("it needs llama3"), std::string::npos);
  }
}

TEST(TrainConfig, RefusesNumbersThatDoNotFit64Bits) {
  TrainConfig config;
  for (const char* name : {"train.tokens", "train.batch", "train.steps"})
    EXPECT_NE(error_of([&] { set_value(settings_of(config), cat(name, "=9223372036854775807")); }).find(" to 1000"),
              std::string::npos);
  EXPECT_NE(model_refusal([](TrainConfig& c) { c.model.dim = c.model.layers = 1 << 30; }).find("at most 1e15"),
            std::string::npos);
}

TEST(TrainConfig, RefusesRanksThatDoNotFit) {
  for (const char* layout : {"zigzag", "contiguous", "striped"})
    for (int64_t tokens : {3, 7, 8, 9, 15, 16, 17}) {
      const std::string text =
          refusal([&](TrainConfig& c) { c.parallel.ranks = 8, c.parallel.layout = layout, c.train.tokens = tokens; });
      EXPECT_EQ(text.find("leaves a rank without a token: give 8 or more") != std::string::npos, tokens < 8) << text;
    }
  EXPECT_EQ(refusal([](TrainConfig& c) { c.parallel.ranks = 6, c.parallel.data_parallel = 4; }),
            "parallel.data_parallel 4 must divide parallel.ranks 6");
  EXPECT_EQ(refusal([](TrainConfig& c) { c.parallel.ranks = 8, c.parallel.data_parallel = 4, c.train.batch = 6; }),
            "parallel.data_parallel 4 must divide train.batch 6, the sequences of a step");
  EXPECT_EQ(refusal([](TrainConfig& c) { c.parallel.ranks = 8, c.parallel.data_parallel = 4, c.train.batch = 8; }),
            "no error");
  EXPECT_EQ(refusal([](TrainConfig& c) { c.parallel.ranks = 6, c.parallel.grid = "startrail:2"; }),
            "startrail:2 does not fit 6 ranks: C*C must divide the ranks; valid on 6 ranks: startrail:1");
  EXPECT_NE(refusal([](TrainConfig& c) { c.parallel.grid = "star"; }).find("grid 'star' is not known; valid grids"),
            std::string::npos);
  EXPECT_EQ(refusal([](TrainConfig& c) { c.parallel.ranks = 4, c.parallel.grid = "ulysses"; }), "no error");
  EXPECT_NE(refusal([](TrainConfig& c) {
              c.parallel.ranks = 8, c.parallel.grid = "ulysses";
            }).find("heads axis 8 does not fit 4 heads with 2 key/value heads"),
            std::string::npos);
  EXPECT_EQ(refusal([](TrainConfig& c) { c.parallel.kernel = "fast"; }),
            "kernel 'fast' is not known; valid kernels: auto, flash, aten, reference");
  EXPECT_NE(refusal([](TrainConfig& c) { c.parallel.layout = "random"; }).find("random"), std::string::npos);
}

TEST(TrainConfig, ChoosesTheGridThatSendsLeast) {
  TrainConfig config;
  config.train.tokens = 4096;
  const auto grid = [&](int64_t ranks, int64_t data_parallel, const std::string& text = "auto") {
    config.parallel.ranks = ranks;
    config.parallel.data_parallel = data_parallel;
    config.parallel.grid = text;
    EXPECT_EQ(sequence_ranks(config), ranks / data_parallel);
    const auto choice = grid_choice(config, model_config(config));
    EXPECT_EQ(choice.has_value(), text == "auto");
    const Grid chosen = attention_options(config, model_config(config)).grid;
    EXPECT_EQ(choice.value_or(GridChoice{chosen}).grid, chosen);
    return chosen;
  };
  EXPECT_EQ(scheme_of(grid(1, 1)), "ring");
  EXPECT_EQ(scheme_of(grid(8, 1, "ring")), "ring");
  EXPECT_EQ(scheme_of(grid(8, 2, "ulysses")), "ulysses");
  config.model.heads = config.model.kv_heads = 4;
  EXPECT_EQ(scheme_of(grid(4, 1)), "ulysses");
  EXPECT_EQ(grid(8, 2), grid(4, 1));
  EXPECT_EQ(grid(8, 1).heads, 4);
  // One key/value head is cheap to pass on, and heads do not divide: 0.79 of a ring's bytes.
  config.model.heads = 3;
  config.model.kv_heads = 1;
  config.model.head_dim = 32;
  EXPECT_EQ(grid(8, 1), (Grid{.ring = 2, .stripe = 4}));
  // A direction that is set is one that counts.
  const Exchange either = exchange_of(config);
  EXPECT_FALSE(either.direction);
  EXPECT_TRUE(either.restores);
  config.parallel.backward = "queries";
  EXPECT_EQ(exchange_of(config).direction, Pass::backward_queries);
}

}  // namespace
}  // namespace startrail

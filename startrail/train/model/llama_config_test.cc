#include "startrail/train/model/llama_config.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <nlohmann/json.hpp>
#include <numbers>

#include "startrail/base/testing.h"
#include "startrail/train/model/llama.h"
#include "startrail/train/model/parameters.h"

namespace startrail {
namespace {

using nlohmann::json;

const Rope kLlama3{
    .type = "llama3", .theta = 500000, .factor = 8, .original_tokens = 8192, .low_frequency = 1.5, .high_frequency = 5};
const Rope kYarn{.type = "yarn",
                 .theta = 20000,
                 .factor = 16,
                 .original_tokens = 4096,
                 .beta_fast = 30,
                 .beta_slow = 2,
                 .attention_factor = 1.75,
                 .truncate = false};

// A valid config.json after `change`.
json changed(const std::function<void(json&)>& change) {
  json j = to_json({});
  change(j);
  return j;
}

std::string refusal(const std::function<void(json&)>& change) {
  return error_of([&] { llama_from_json(changed(change), "config.json"); });
}

std::string refusal(const LlamaConfig& config) {
  return error_of([&] { check_config(config); });
}

TEST(LlamaConfig, RefusesWhatWouldBeReadAsSomethingElse) {
  EXPECT_NE(refusal([](json& j) { j["hidden_size"] = 128.7; }).find("'hidden_size' is 128.7"), std::string::npos);
  EXPECT_NE(refusal([](json& j) { j["rope_scaling"] = "yarn"; }).find("'rope_scaling' is \"yarn\""), std::string::npos);
}

TEST(LlamaConfig, PresetsAreValidAndHaveTheirSizes) {
  for (const std::string& name : llama_presets()) {
    const LlamaConfig config = llama_preset(name);
    EXPECT_EQ(refusal(config), "no error") << name;
    EXPECT_EQ(config.heads * config.head_dim, config.dim) << name;
    EXPECT_EQ(config.parameters(), count_parameters(Llama(config))) << name;
  }
  EXPECT_EQ(llama_preset("tiny").parameters(), 853'120);  // by hand
  EXPECT_NEAR(static_cast<double>(llama_preset("gpt-125m").parameters()), 124e6, 2e6);
  EXPECT_NEAR(static_cast<double>(llama_preset("gpt-1b").parameters()), 1.34e9, 0.02e9);
  EXPECT_NEAR(static_cast<double>(llama_preset("gpt-3b").parameters()), 3.65e9, 0.05e9);
  EXPECT_NEAR(static_cast<double>(llama_preset("gpt-7b").parameters()), 6.9e9, 0.05e9);
  EXPECT_EQ(error_of([] { llama_preset("gpt-8b"); }),
            "preset 'gpt-8b' is not known; valid: tiny, gpt-125m, gpt-1b, gpt-3b, gpt-7b");
}

TEST(LlamaConfig, CountsATiedHeadOnce) {
  LlamaConfig config;
  const int64_t untied = config.parameters();
  config.tied = true;
  EXPECT_EQ(untied - config.parameters(), config.vocabulary * config.dim);
  EXPECT_EQ(config.parameters(), count_parameters(Llama(config)));
}

TEST(LlamaConfig, ReadsWhatItWrites) {
  for (const Rope& rope : {Rope{.theta = 12345}, Rope{.type = "linear", .factor = 4}, kLlama3, kYarn,
                           Rope{.type = "yarn", .factor = 2, .original_tokens = 100}}) {
    const LlamaConfig config{.vocabulary = 300,
                             .dim = 48,
                             .layers = 3,
                             .heads = 6,
                             .key_heads = 2,
                             .head_dim = 10,
                             .hidden = 77,
                             .norm_eps = 3e-4,
                             .tied = true,
                             .rope = rope,
                             .max_tokens = 999};
    const LlamaConfig read = llama_from_json(json::parse(to_json(config).dump()), "config.json");
    EXPECT_EQ(to_json(read), to_json(config)) << rope.type;
    EXPECT_EQ(read.vocabulary, 300);
    EXPECT_EQ(read.dim, 48);
    EXPECT_EQ(read.layers, 3);
    EXPECT_EQ(read.heads, 6);
    EXPECT_EQ(read.key_heads, 2);
    EXPECT_EQ(read.head_dim, 10);
    EXPECT_EQ(read.hidden, 77);
    EXPECT_EQ(read.norm_eps, 3e-4);
    EXPECT_TRUE(read.tied);
    EXPECT_EQ(read.max_tokens, 999);
    EXPECT_EQ(rope_frequencies(read.rope, 64).frequencies, rope_frequencies(rope, 64).frequencies) << rope.type;
    EXPECT_EQ(rope_frequencies(read.rope, 64).gain, rope_frequencies(rope, 64).gain) << rope.type;
  }
}

TEST(LlamaConfig, ReadsWhatItWritesOfEveryKind) {
  const auto both = [](LlamaConfig config) {
    EXPECT_EQ(config.parameters(), count_parameters(Llama(config))) << config.kind;
    const json written = to_json(config);
    const LlamaConfig read = llama_from_json(json::parse(written.dump()), "config.json");
    EXPECT_EQ(to_json(read), written) << config.kind;
    EXPECT_EQ(read.kind, config.kind);
    EXPECT_EQ(read.attention_bias, config.attention_bias);
    EXPECT_EQ(read.window, config.window);
    EXPECT_EQ(read.windowed, config.windowed);
    EXPECT_EQ(read.parameters(), config.parameters());
    return written;
  };
  EXPECT_EQ(both({.attention_bias = true})["attention_bias"], true);
  EXPECT_EQ(both({.kind = "mistral"})["sliding_window"], nullptr);
  const json mistral = both({.kind = "mistral", .window = 77});
  EXPECT_EQ(mistral["sliding_window"], 77);
  EXPECT_EQ(mistral["architectures"][0], "MistralForCausalLM");
  const json qwen2 = both({.kind = "qwen2"});
  EXPECT_EQ(qwen2["use_sliding_window"], false);
  EXPECT_EQ(qwen2["architectures"][0], "Qwen2ForCausalLM");
  both({.kind = "qwen2", .window = 9});
  const json qwen3 =
      both({.kind = "qwen3", .attention_bias = true, .window = 9, .windowed = {false, false, true, true}});
  EXPECT_EQ(qwen3["max_window_layers"], 2);
  EXPECT_EQ(qwen3["layer_types"][1], "full_attention");
  EXPECT_EQ(qwen3["layer_types"][2], "sliding_attention");
}

// Heads of config.json files as they were published, and the parameters of those models.
TEST(LlamaConfig, ReadsPublishedModels) {
  const auto read = [](const char* text) { return llama_from_json(json::parse(text), "config.json"); };
  const LlamaConfig qwen2 = read(R"({"model_type": "qwen2", "hidden_size": 3584, "intermediate_size": 18944,
      "max_position_embeddings": 131072, "max_window_layers": 28, "num_attention_heads": 28, "num_hidden_layers": 28,
      "num_key_value_heads": 4, "rms_norm_eps": 1e-06, "rope_theta": 1000000.0, "sliding_window": 131072,
      "tie_word_embeddings": false, "torch_dtype": "bfloat16", "use_sliding_window": false, "vocab_size": 152064})");
  EXPECT_EQ(qwen2.parameters(), 7'615'616'512);  // Qwen2.5-7B
  EXPECT_EQ(qwen2.window, 0);
  EXPECT_EQ(qwen2.rope.theta, 1e6);
  const LlamaConfig qwen3 = read(R"({"model_type": "qwen3", "attention_bias": false, "head_dim": 128,
      "hidden_size": 1024, "intermediate_size": 3072, "max_window_layers": 28, "num_attention_heads": 16,
      "num_hidden_layers": 28, "num_key_value_heads": 8, "rope_scaling": null, "rope_theta": 1000000,
      "sliding_window": null, "tie_word_embeddings": true, "use_sliding_window": false, "vocab_size": 151936})");
  EXPECT_EQ(qwen3.parameters(), 596'049'920);  // Qwen3-0.6B
  const LlamaConfig mistral = read(R"({"model_type": "mistral", "hidden_size": 4096, "intermediate_size": 14336,
      "max_position_embeddings": 32768, "num_attention_heads": 32, "num_hidden_layers": 32, "num_key_value_heads": 8,
      "rms_norm_eps": 1e-05, "rope_theta": 10000.0, "sliding_window": 4096, "vocab_size": 32000})");
  EXPECT_EQ(mistral.parameters(), 7'241'732'096);  // Mistral-7B-v0.1
  EXPECT_EQ(mistral.window_of(0), 4096);
  EXPECT_EQ(mistral.window_of(31), 4096);
}

TEST(LlamaConfig, FindsTheWindowsOfLayers) {
  const auto windows = [](const char* kind, const std::function<void(json&)>& change) {
    json j = to_json({.kind = kind});
    for (const char* key : {"use_sliding_window", "sliding_window", "max_window_layers", "layer_types"}) j.erase(key);
    change(j);
    const LlamaConfig config = llama_from_json(j, "config.json");
    std::vector<int64_t> found;
    for (int64_t layer = 0; layer < config.layers; ++layer) found.push_back(config.window_of(layer));
    return found;
  };
  using Windows = std::vector<int64_t>;
  EXPECT_EQ(windows("mistral", [](json&) {}), (Windows{4096, 4096, 4096, 4096}));  // transformers' default
  EXPECT_EQ(windows("mistral", [](json& j) { j["sliding_window"] = nullptr; }), Windows(4));
  for (const char* kind : {"qwen2", "qwen3"}) {
    EXPECT_EQ(windows(kind, [](json& j) { j["sliding_window"] = 5; }), Windows(4));
    const auto used = [&](const std::function<void(json&)>& change) {
      return windows(kind, [&](json& j) {
        j["use_sliding_window"] = true;
        j["sliding_window"] = 5;
        change(j);
      });
    };
    EXPECT_EQ(used([](json&) {}), Windows(4));  // from layer 28 on
    EXPECT_EQ(used([](json& j) { j["max_window_layers"] = 3; }), (Windows{0, 0, 0, 5}));
    EXPECT_EQ(used([](json& j) { j["max_window_layers"] = 0; }), (Windows{5, 5, 5, 5}));
    // The list is what counts where there is one.
    EXPECT_EQ(used([](json& j) {
                j["max_window_layers"] = 3;
                j["layer_types"] = {"sliding_attention", "full_attention", "sliding_attention", "full_attention"};
              }),
              (Windows{5, 0, 5, 0}));
  }
}

TEST(LlamaConfig, ReadsOldAndNewKeysOfRopeAlike) {
  const auto same = [](const json& old_scaling, const Rope& expected) {
    const LlamaConfig older = llama_from_json(changed([&](json& j) {
                                                j.erase("rope_parameters");
                                                j["rope_theta"] = expected.theta;
                                                j["rope_scaling"] = old_scaling;
                                              }),
                                              "old");
    const LlamaConfig newer = llama_from_json(changed([&](json& j) {
                                                j.erase("rope_scaling");
                                                j.erase("rope_theta");
                                                json parameters = old_scaling.is_null() ? json::object() : old_scaling;
                                                parameters.erase("type");
                                                parameters["rope_type"] = expected.type;
                                                parameters["rope_theta"] = expected.theta;
                                                j["rope_parameters"] = parameters;
                                              }),
                                              "new");
    EXPECT_EQ(to_json(older), to_json(newer)) << expected.type;
    const RopeFrequencies truth = rope_frequencies(expected, 32);
    for (const LlamaConfig& read : {older, newer}) {
      EXPECT_EQ(read.rope.type, expected.type);
      EXPECT_EQ(rope_frequencies(read.rope, 32).frequencies, truth.frequencies) << expected.type;
      EXPECT_EQ(rope_frequencies(read.rope, 32).gain, truth.gain) << expected.type;
    }
  };
  same(nullptr, {.theta = 77777});
  same({{"type", "linear"}, {"factor", 4.0}}, {.type = "linear", .theta = 20000, .factor = 4});
  same({{"type", "llama3"},
        {"factor", 8.0},
        {"original_max_position_embeddings", 8192},
        {"low_freq_factor", 1.5},
        {"high_freq_factor", 5.0}},
       kLlama3);
  same({{"type", "yarn"},
        {"factor", 16.0},
        {"original_max_position_embeddings", 4096},
        {"beta_fast", 30},
        {"beta_slow", 2},
        {"attention_factor", 1.75},
        {"truncate", false}},
       kYarn);
}

TEST(LlamaConfig, FillsInWhatMayBeLeftOut) {
  const LlamaConfig config =
      llama_from_json(json::parse(R"({"model_type": "llama", "vocab_size": 100, "hidden_size": 64, "head_dim": null,
          "num_hidden_layers": 2, "num_attention_heads": 8, "intermediate_size": 99, "rope_scaling": null})"),
                      "config.json");
  EXPECT_EQ(config.key_heads, 8);
  EXPECT_EQ(config.head_dim, 8);
  EXPECT_EQ(config.norm_eps, 1e-6);  // transformers' defaults from here on
  EXPECT_FALSE(config.tied);
  EXPECT_EQ(config.rope.type, "default");
  EXPECT_EQ(config.rope.theta, 10000);
  EXPECT_EQ(config.max_tokens, 2048);
}

TEST(LlamaConfig, RefusesWhatWouldChangeTheResult) {
  EXPECT_EQ(refusal([](json&) {}), "no error");
  const std::string kinds = "supported: llama, qwen2, qwen3, mistral";
  EXPECT_EQ(refusal([](json& j) { j["model_type"] = "qwen3_moe"; }),
            "config.json has model_type 'qwen3_moe'; " + kinds);
  EXPECT_EQ(refusal([](json& j) { j.erase("model_type"); }), "config.json has model_type ''; " + kinds);
  EXPECT_EQ(refusal([](json& j) {
              j["quantization_config"] = {{"quant_method", "fp8"}};
            }),
            "config.json: quantization_config is not supported, only weights that are not quantized");
  EXPECT_EQ(refusal([](json& j) { j["mlp_bias"] = true; }), "config.json: mlp_bias is not supported, only false");
  EXPECT_EQ(refusal([](json& j) { j["hidden_act"] = "gelu"; }),
            "config.json: hidden_act 'gelu' is not supported, only silu");
  EXPECT_EQ(refusal([](json& j) { j["rope_parameters"]["rope_type"] = "longrope"; }),
            "rope scaling 'longrope' is not known; valid: default, linear, llama3, yarn");
  for (const char* key : {"mscale", "mscale_all_dim"})
    EXPECT_EQ(refusal([&](json& j) { j["rope_parameters"][key] = 0.7; }),
              "config.json: rope with mscale is not supported; give attention_factor instead");
  const std::string partial = "config.json: rope over a part of the head (partial_rotary_factor) is not supported";
  EXPECT_EQ(refusal([](json& j) { j["partial_rotary_factor"] = 0.5; }), partial);
  EXPECT_EQ(refusal([](json& j) { j["rope_parameters"]["partial_rotary_factor"] = 0.5; }), partial);
}

TEST(LlamaConfig, RefusesWindowsThatCannotBe) {
  const auto refused = [](const std::string& kind, const std::function<void(json&)>& change) {
    return refusal([&](json& j) {
      j = to_json({.kind = kind});
      change(j);
    });
  };
  const json last = {"full_attention", "full_attention", "full_attention", "sliding_attention"};
  EXPECT_EQ(refused("mistral", [](json& j) { j["sliding_window"] = 0; }),
            "config.json: sliding_window 0 must be 1 or more, or null");
  EXPECT_EQ(refused("mistral", [&](json& j) { j["layer_types"] = last; }),
            "config.json: layer_types has sliding_attention, but no sliding_window is given");
  EXPECT_EQ(refused("mistral",
                    [&](json& j) {
                      j["layer_types"] = last;
                      j["sliding_window"] = 8;
                    }),
            "config.json: layer_types that leave layers without the window are not supported for mistral");
  EXPECT_EQ(refused("qwen2", [&](json& j) { j["layer_types"] = last; }),
            "config.json: layer_types has sliding_attention, but no sliding_window is given or used "
            "(use_sliding_window)");
  EXPECT_EQ(refused("qwen3", [](json& j) { j["layer_types"] = {"full_attention"}; }),
            "config.json: layer_types names 1 layers, but there are 4");
  EXPECT_EQ(refused("qwen3", [](json& j) { j["layer_types"][2] = "chunked_attention"; }),
            "config.json: layer type 'chunked_attention' is not supported, only full_attention and sliding_attention");
}

TEST(LlamaConfig, RefusesMissingKeysAndWrongTypes) {
  for (const char* key :
       {"vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size"}) {
    EXPECT_EQ(refusal([&](json& j) { j.erase(key); }), cat("config.json has no '", key, "'"));
    EXPECT_EQ(refusal([&](json& j) { j[key] = nullptr; }), cat("config.json has no '", key, "'"));
    EXPECT_EQ(refusal([&](json& j) { j[key] = "many"; }),
              cat("config.json: '", key, "' is \"many\", which is not of the right type"));
  }
  EXPECT_EQ(refusal([](json& j) { j["tie_word_embeddings"] = "yes"; }),
            "config.json: 'tie_word_embeddings' is \"yes\", which is not of the right type");
  EXPECT_EQ(refusal([](json& j) { j["rope_parameters"]["factor"] = "4"; }),
            "config.json: 'factor' is \"4\", which is not of the right type");
  EXPECT_EQ(refusal([](json& j) { j["num_attention_heads"] = 0; }),
            "config.json: num_attention_heads must be 1 or more");
  EXPECT_EQ(refusal([](json& j) { j = json::array({1}); }),
            "config.json is no model configuration: it is not a JSON object");
}

TEST(LlamaConfig, RefusesShapesThatCannotBe) {
  EXPECT_EQ(refusal({.heads = 4, .key_heads = 3}), "model kv_heads 3 must divide heads 4");
  EXPECT_EQ(refusal([](json& j) { j["num_key_value_heads"] = 3; }), "model kv_heads 3 must divide heads 4");
  EXPECT_EQ(refusal({.head_dim = 31}), "model head_dim 31 must be even, as rotary positions turn pairs");
  EXPECT_EQ(refusal({.vocabulary = 0}), "model vocabulary 0 must be 1 or more, and at most 2^31");
  EXPECT_EQ(refusal({.dim = -1}), "model dim -1 must be 1 or more, and at most 2^31");
  EXPECT_EQ(refusal({.layers = 0}), "model layers 0 must be 1 or more, and at most 2^31");
  EXPECT_EQ(refusal({.heads = 0}), "model heads 0 must be 1 or more, and at most 2^31");
  EXPECT_EQ(refusal({.key_heads = 0}), "model kv_heads 0 must be 1 or more, and at most 2^31");
  EXPECT_EQ(refusal({.head_dim = 0}), "model head_dim 0 must be 1 or more, and at most 2^31");
  EXPECT_EQ(refusal({.hidden = 0}), "model hidden 0 must be 1 or more, and at most 2^31");
  EXPECT_EQ(refusal({.kind = "gemma"}), "model kind 'gemma' is not known; valid: llama, qwen2, qwen3, mistral");
  EXPECT_EQ(refusal({.norm_eps = 0}), "model norm_eps 0 must be above 0");
  EXPECT_EQ(refusal({.rope = {.theta = 1}}), "rope theta 1 must be above 1");
  EXPECT_EQ(refusal({.rope = {.type = "linear", .factor = 0.5}}), "rope factor 0.5 must be 1 or more");
  for (const char* type : {"llama3", "yarn"})
    EXPECT_EQ(refusal({.rope = {.type = type, .factor = 2}}),
              cat("rope scaling ", type, " needs the length before stretching (rope_original_tokens, or ",
                  "original_max_position_embeddings in a config.json)"));
  EXPECT_EQ(refusal({.rope = {.type = "llama3", .original_tokens = 10, .low_frequency = 4, .high_frequency = 4}}),
            "rope low frequency 4 must be below the high frequency 4");
}

TEST(Rope, DefaultFallsFromOneByPowersOfTheta) {
  const RopeFrequencies rope = rope_frequencies({.theta = 10000}, 8);
  EXPECT_EQ(rope.gain, 1);
  ASSERT_EQ(rope.frequencies.size(), 4u);
  for (size_t i = 0; i < 4; ++i) EXPECT_NEAR(rope.frequencies[i], std::pow(10.0, -static_cast<double>(i)), 1e-12);
}

TEST(Rope, LinearIsTheDefaultDividedByTheFactor) {
  const RopeFrequencies plain = rope_frequencies({}, 64);
  const RopeFrequencies linear = rope_frequencies({.type = "linear", .factor = 4}, 64);
  EXPECT_EQ(linear.gain, 1);
  for (size_t i = 0; i < 32; ++i) EXPECT_EQ(linear.frequencies[i], plain.frequencies[i] / 4) << i;
}

// Against the formula as the Llama 3.1 release has it, in wavelengths.
TEST(Rope, Llama3LeavesFastWavesAndStretchesSlowOnes) {
  const RopeFrequencies plain = rope_frequencies({.theta = kLlama3.theta}, 128);
  const RopeFrequencies scaled = rope_frequencies(kLlama3, 128);
  EXPECT_EQ(scaled.gain, 1);
  EXPECT_EQ(scaled.frequencies.front(), plain.frequencies.front());
  EXPECT_EQ(scaled.frequencies.back(), plain.frequencies.back() / 8);
  int between = 0;
  for (size_t i = 0; i < 64; ++i) {
    const double wavelength = 2 * std::numbers::pi / plain.frequencies[i];
    double expected = plain.frequencies[i];
    if (wavelength > 8192 / 1.5) {
      expected /= 8;
    } else if (wavelength >= 8192 / 5.0) {
      const double smooth = (8192 / wavelength - 1.5) / (5 - 1.5);
      expected = (1 - smooth) * expected / 8 + smooth * expected;
      ++between;
    }
    EXPECT_NEAR(scaled.frequencies[i], expected, 1e-12 * expected) << i;
  }
  EXPECT_GT(between, 1);
}

TEST(Rope, YarnLeavesFastWavesStretchesSlowOnesAndRaisesTheGain) {
  Rope rope{.type = "yarn", .factor = 16, .original_tokens = 4096};
  const RopeFrequencies plain = rope_frequencies({}, 128);
  const RopeFrequencies scaled = rope_frequencies(rope, 128);
  EXPECT_EQ(scaled.frequencies.front(), plain.frequencies.front());
  EXPECT_EQ(scaled.frequencies.back(), plain.frequencies.back() / 16);
  // A wave that turns n times within 4096 tokens is at 128 ln(4096 / (2 pi n)) / (2 ln 10000): 20.9 for 32, 45.03
  // for 1.
  for (size_t i = 0; i < 64; ++i) {
    const double ramp = std::clamp((static_cast<double>(i) - 20) / (46 - 20), 0.0, 1.0);
    EXPECT_NEAR(scaled.frequencies[i] / plain.frequencies[i], ramp / 16 + 1 - ramp, 1e-12) << i;
  }
  EXPECT_NEAR(scaled.gain, 1.2772588722239781, 1e-15);  // 0.1 ln 16 + 1
  rope.attention_factor = 1.5;
  EXPECT_EQ(rope_frequencies(rope, 128).gain, 1.5);
  EXPECT_EQ(rope_frequencies({.type = "yarn", .factor = 1, .original_tokens = 4096}, 128).gain, 1);
}

}  // namespace
}  // namespace startrail

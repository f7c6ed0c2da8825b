#include "startrail/train/model/llama_config.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <numbers>

#include "startrail/base/error.h"
#include "startrail/train/model/json_fields.h"

namespace startrail {
namespace {

using nlohmann::json;

// GPT-3B and GPT-7B have the paper's layers and dim (arXiv 2407.00611, section 4).
const std::vector<std::pair<std::string, LlamaConfig>>& presets() {
  static const std::vector<std::pair<std::string, LlamaConfig>> list = {
      {"tiny", {.vocabulary = 256, .dim = 128, .layers = 4, .heads = 4, .key_heads = 2, .head_dim = 32, .hidden = 384}},
      {"gpt-125m",
       {.vocabulary = 50304,
        .dim = 768,
        .layers = 12,
        .heads = 12,
        .key_heads = 12,
        .head_dim = 64,
        .hidden = 2048,
        .tied = true}},
      {"gpt-1b",
       {.vocabulary = 50304, .dim = 2048, .layers = 22, .heads = 32, .key_heads = 32, .head_dim = 64, .hidden = 5632}},
      {"gpt-3b",
       {.vocabulary = 50304,
        .dim = 4096,
        .layers = 16,
        .heads = 32,
        .key_heads = 32,
        .head_dim = 128,
        .hidden = 11008}},
      {"gpt-7b",
       {.vocabulary = 50304,
        .dim = 4096,
        .layers = 32,
        .heads = 32,
        .key_heads = 32,
        .head_dim = 128,
        .hidden = 11008}},
  };
  return list;
}

// yarn: the place on the dims where a wave turns `rotations` times within the original length.
double correction(double rotations, int64_t dim, const Rope& rope) {
  return static_cast<double>(dim) * std::log(rope.original_tokens / (rotations * 2 * std::numbers::pi)) /
         (2 * std::log(rope.theta));
}

void check_rope(const Rope& rope) {
  if (rope.type != "default" && rope.type != "linear" && rope.type != "llama3" && rope.type != "yarn")
    throw UserError(cat("rope scaling '", rope.type, "' is not known; valid: default, linear, llama3, yarn"));
  if (!(rope.theta > 1)) throw UserError(cat("rope theta ", rope.theta, " must be above 1"));
  if (rope.type == "default") return;
  if (!(rope.factor >= 1)) throw UserError(cat("rope factor ", rope.factor, " must be 1 or more"));
  if (rope.type != "linear" && !(rope.original_tokens >= 1))
    throw UserError(cat("rope scaling ", rope.type, " needs the length before stretching (rope_original_tokens, or ",
                        "original_max_position_embeddings in a config.json)"));
  if (rope.type == "llama3" && !(rope.low_frequency < rope.high_frequency))
    throw UserError(
        cat("rope low frequency ", rope.low_frequency, " must be below the high frequency ", rope.high_frequency));
}

Rope rope_from_json(const json& config, std::string_view where) {
  Rope rope;
  rope.theta = get_or(config, "rope_theta", rope.theta, where);
  json scaling = json::object();
  for (const char* key : {"rope_scaling", "rope_parameters"})
    if (config.contains(key) && !config[key].is_null()) scaling = get<json::object_t>(config, key, where);
  rope.theta = get_or(scaling, "rope_theta", rope.theta, where);
  rope.type = get_or<std::string>(scaling, "rope_type", get_or<std::string>(scaling, "type", "default", where), where);
  rope.factor = get_or(scaling, "factor", 1.0, where);
  rope.original_tokens = get_or(
      scaling, "original_max_position_embeddings",
      get_or(config, "original_max_position_embeddings", get_or(config, "max_position_embeddings", 0.0, where), where),
      where);
  rope.low_frequency = get_or(scaling, "low_freq_factor", rope.low_frequency, where);
  rope.high_frequency = get_or(scaling, "high_freq_factor", rope.high_frequency, where);
  rope.beta_fast = get_or(scaling, "beta_fast", rope.beta_fast, where);
  rope.beta_slow = get_or(scaling, "beta_slow", rope.beta_slow, where);
  rope.attention_factor = get_or(scaling, "attention_factor", 0.0, where);
  rope.truncate = get_or(scaling, "truncate", true, where);
  if (scaling.contains("mscale") || scaling.contains("mscale_all_dim"))
    throw UserError(cat(where, ": rope with mscale is not supported; give attention_factor instead"));
  if (get_or(scaling, "partial_rotary_factor", get_or(config, "partial_rotary_factor", 1.0, where), where) != 1.0)
    throw UserError(cat(where, ": rope over a part of the head (partial_rotary_factor) is not supported"));
  return rope;
}

}  // namespace

RopeFrequencies rope_frequencies(const Rope& rope, int64_t dim) {
  check_rope(rope);
  RopeFrequencies result;
  const int64_t half = dim / 2;
  for (int64_t i = 0; i < half; ++i)
    result.frequencies.push_back(std::pow(rope.theta, -2.0 * static_cast<double>(i) / static_cast<double>(dim)));
  if (rope.type == "linear")
    for (double& frequency : result.frequencies) frequency /= rope.factor;
  if (rope.type == "llama3") {
    // Long waves are stretched, short ones left, those between blended.
    for (double& frequency : result.frequencies) {
      const double turns = rope.original_tokens * frequency / (2 * std::numbers::pi);
      const double blend =
          std::clamp((turns - rope.low_frequency) / (rope.high_frequency - rope.low_frequency), 0.0, 1.0);
      frequency *= (1 - blend) / rope.factor + blend;
    }
  }
  if (rope.type == "yarn") {
    double low = correction(rope.beta_fast, dim, rope), high = correction(rope.beta_slow, dim, rope);
    if (rope.truncate) {
      low = std::floor(low);
      high = std::ceil(high);
    }
    low = std::max(low, 0.0);
    high = std::min(high, static_cast<double>(dim - 1));
    if (low == high) high += 0.001;
    for (int64_t i = 0; i < half; ++i) {
      const double ramp = std::clamp((static_cast<double>(i) - low) / (high - low), 0.0, 1.0);
      result.frequencies[i] *= ramp / rope.factor + (1 - ramp);
    }
    result.gain =
        rope.attention_factor > 0 ? rope.attention_factor : (rope.factor <= 1 ? 1 : 0.1 * std::log(rope.factor) + 1);
  }
  return result;
}

int64_t LlamaConfig::parameters() const {
  const int64_t attention = dim * head_dim * (2 * heads + 2 * key_heads), mlp = 3 * dim * hidden;
  return vocabulary * dim * (tied ? 1 : 2) + layers * (attention + mlp + 2 * dim) + dim;
}

void check_config(const LlamaConfig& config) {
  for (const auto& [name, value] : std::map<std::string, int64_t>{{"vocabulary", config.vocabulary},
                                                                  {"dim", config.dim},
                                                                  {"layers", config.layers},
                                                                  {"heads", config.heads},
                                                                  {"kv_heads", config.key_heads},
                                                                  {"head_dim", config.head_dim},
                                                                  {"hidden", config.hidden}})
    if (value < 1 || value > (int64_t{1} << 31))
      throw UserError(cat("model ", name, " ", value, " must be 1 or more, and at most 2^31"));
  const auto real = [](int64_t value) { return static_cast<double>(value); };
  const double per_layer =
      real(config.dim) * (real(config.head_dim) * real(config.heads) * 4 + real(config.hidden) * 3);
  if (const double all = real(config.vocabulary) * real(config.dim) * 2 + real(config.layers) * per_layer; all > 1e15)
    throw UserError(cat("a model of up to ", all, " parameters is beyond any memory: at most 1e15 are counted"));
  if (config.heads % config.key_heads != 0)
    throw UserError(cat("model kv_heads ", config.key_heads, " must divide heads ", config.heads));
  if (config.head_dim % 2 != 0)
    throw UserError(cat("model head_dim ", config.head_dim, " must be even, as rotary positions turn pairs"));
  if (!(config.norm_eps > 0)) throw UserError(cat("model norm_eps ", config.norm_eps, " must be above 0"));
  check_rope(config.rope);
}

LlamaConfig llama_preset(std::string_view name) {
  for (const auto& [known, config] : presets())
    if (known == name) return config;
  throw UserError(cat("preset '", name, "' is not known; valid: ", join(llama_presets())));
}

std::vector<std::string> llama_presets() {
  std::vector<std::string> names;
  for (const auto& [name, config] : presets()) names.push_back(name);
  return names;
}

LlamaConfig llama_from_json(const json& j, std::string_view where) {
  if (!j.is_object()) throw UserError(cat(where, " is no model configuration: it is not a JSON object"));
  const auto kind = get_or<std::string>(j, "model_type", "", where);
  if (kind != "llama") throw UserError(cat(where, " has model_type '", kind, "'; supported: llama"));
  LlamaConfig config;
  config.vocabulary = get<int64_t>(j, "vocab_size", where);
  config.dim = get<int64_t>(j, "hidden_size", where);
  config.layers = get<int64_t>(j, "num_hidden_layers", where);
  config.heads = get<int64_t>(j, "num_attention_heads", where);
  config.key_heads = get_or(j, "num_key_value_heads", config.heads, where);
  if (config.heads < 1) throw UserError(cat(where, ": num_attention_heads must be 1 or more"));
  config.head_dim = get_or(j, "head_dim", config.dim / config.heads, where);
  config.hidden = get<int64_t>(j, "intermediate_size", where);
  config.norm_eps = get_or(j, "rms_norm_eps", 1e-6, where);
  config.tied = get_or(j, "tie_word_embeddings", false, where);
  config.max_tokens = get_or<int64_t>(j, "max_position_embeddings", 2048, where);
  config.rope = rope_from_json(j, where);
  for (const char* key : {"attention_bias", "mlp_bias"})
    if (get_or(j, key, false, where)) throw UserError(cat(where, ": ", key, " is not supported, only false"));
  if (const auto act = get_or<std::string>(j, "hidden_act", "silu", where); act != "silu")
    throw UserError(cat(where, ": hidden_act '", act, "' is not supported, only silu"));
  check_config(config);
  return config;
}

json to_json(const LlamaConfig& config) {
  // Both spellings, so that every transformers version reads the same model.
  json scaling = {{"rope_type", config.rope.type}};
  if (config.rope.type != "default") scaling["factor"] = config.rope.factor;
  if (config.rope.type == "llama3" || config.rope.type == "yarn")
    scaling["original_max_position_embeddings"] = static_cast<int64_t>(config.rope.original_tokens);
  if (config.rope.type == "llama3") {
    scaling["low_freq_factor"] = config.rope.low_frequency;
    scaling["high_freq_factor"] = config.rope.high_frequency;
  }
  if (config.rope.type == "yarn") {
    scaling["beta_fast"] = config.rope.beta_fast;
    scaling["beta_slow"] = config.rope.beta_slow;
    if (config.rope.attention_factor > 0) scaling["attention_factor"] = config.rope.attention_factor;
    if (!config.rope.truncate) scaling["truncate"] = false;
  }
  json parameters = scaling;
  parameters["rope_theta"] = config.rope.theta;
  return {{"architectures", {"LlamaForCausalLM"}},
          {"model_type", "llama"},
          {"vocab_size", config.vocabulary},
          {"hidden_size", config.dim},
          {"num_hidden_layers", config.layers},
          {"num_attention_heads", config.heads},
          {"num_key_value_heads", config.key_heads},
          {"head_dim", config.head_dim},
          {"intermediate_size", config.hidden},
          {"rms_norm_eps", config.norm_eps},
          {"tie_word_embeddings", config.tied},
          {"max_position_embeddings", config.max_tokens},
          {"rope_parameters", parameters},
          {"rope_theta", config.rope.theta},
          {"rope_scaling", config.rope.type == "default" ? json() : scaling},
          {"hidden_act", "silu"},
          {"attention_bias", false},
          {"mlp_bias", false},
          {"attention_dropout", 0.0},
          {"bos_token_id", nullptr},
          {"eos_token_id", nullptr},
          {"pad_token_id", nullptr}};
}

}  // namespace startrail

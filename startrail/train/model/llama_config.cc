#include "startrail/train/model/llama_config.h"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <numbers>

#include "startrail/base/error.h"
#include "startrail/train/model/json_fields.h"

namespace startrail {
namespace {

using nlohmann::json;

struct Preset {
  const char* name;
  int64_t vocabulary, dim, layers, heads, key_heads, head_dim, hidden;
  bool tied;
};
// GPT-3B and GPT-7B have the paper's layers and dim (arXiv 2407.00611, section 4).
constexpr Preset kPresets[] = {
    {"tiny", 256, 128, 4, 4, 2, 32, 384, false},
    {"gpt-125m", 50304, 768, 12, 12, 12, 64, 2048, true},
    {"gpt-1b", 50304, 2048, 22, 32, 32, 64, 5632, false},
    {"gpt-3b", 50304, 4096, 16, 32, 32, 128, 11008, false},
    {"gpt-7b", 50304, 4096, 32, 32, 32, 128, 11008, false},
};

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

// Which layers have the window, of a kind where they may differ.
std::vector<bool> windowed_from_json(const json& j, int64_t layers, std::string_view where) {
  std::vector<bool> windowed;
  if (!j.contains("layer_types") || j["layer_types"].is_null()) {
    const auto first = get_or<int64_t>(j, "max_window_layers", 28, where);
    for (int64_t layer = 0; layer < layers; ++layer) windowed.push_back(layer >= first);
    return windowed;
  }
  for (const auto& type : get<std::vector<std::string>>(j, "layer_types", where)) {
    if (type != "full_attention" && type != "sliding_attention")
      throw UserError(
          cat(where, ": layer type '", type, "' is not supported, only full_attention and sliding_attention"));
    windowed.push_back(type == "sliding_attention");
  }
  if (static_cast<int64_t>(windowed.size()) != layers)
    throw UserError(cat(where, ": layer_types names ", windowed.size(), " layers, but there are ", layers));
  return windowed;
}

void read_windows(const json& j, LlamaConfig& config, std::string_view where) {
  if (config.kind == "llama") return;
  constexpr int64_t kUsual = 4096;  // transformers'
  const bool everywhere = config.kind == "mistral";
  const bool used = everywhere || get_or(j, "use_sliding_window", false, where);
  const bool none = !used || (j.contains("sliding_window") && j["sliding_window"].is_null());
  config.window = none ? 0 : get_or(j, "sliding_window", kUsual, where);
  if (!none && config.window < 1)
    throw UserError(cat(where, ": sliding_window ", config.window, " must be 1 or more, or null"));
  const bool listed = j.contains("layer_types") && !j["layer_types"].is_null();
  if (!listed && (everywhere || config.window == 0)) return;
  const std::vector<bool> windowed = windowed_from_json(j, config.layers, where);
  const int64_t count = std::count(windowed.begin(), windowed.end(), true);
  if (count > 0 && config.window == 0)
    throw UserError(cat(where, ": layer_types has sliding_attention, but no sliding_window is ",
                        everywhere ? "given" : "given or used (use_sliding_window)"));
  if (everywhere && config.window > 0 && count < config.layers)
    throw UserError(cat(where, ": layer_types that leave layers without the window are not supported for mistral"));
  if (count == 0) config.window = 0;
  if (count > 0 && count < config.layers) config.windowed = windowed;
}

// What config.json says of a kind beside what all have.
void write_kind(json& j, const LlamaConfig& config) {
  const json window = config.window > 0 ? json(config.window) : json();
  if (config.kind == "llama" || config.kind == "qwen3") j["attention_bias"] = config.attention_bias;
  if (config.kind == "llama") j["mlp_bias"] = false;
  if (config.kind == "llama") return;
  j["sliding_window"] = window;
  if (config.kind == "mistral") return;
  // Versions that know no layer_types go by the first layer that has the window.
  json types = json::array();
  int64_t first = config.layers;
  for (int64_t layer = 0; layer < config.layers; ++layer) {
    const bool windowed = config.window_of(layer) > 0;
    types.push_back(windowed ? "sliding_attention" : "full_attention");
    if (windowed) first = std::min(first, layer);
  }
  j["use_sliding_window"] = config.window > 0;
  j["max_window_layers"] = first;
  j["layer_types"] = types;
}

// What transformers takes for keys that are left out.
struct KindDefaults {
  int64_t key_heads, head_dim, max_tokens;  // 0: as many as heads; dim / heads
};
const std::map<std::string, KindDefaults>& kind_defaults() {
  static const std::map<std::string, KindDefaults> table = {
      {"llama", {0, 0, 2048}}, {"qwen2", {32, 0, 32768}}, {"qwen3", {32, 128, 32768}}, {"mistral", {8, 0, 131072}}};
  return table;
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
  int64_t attention = dim * head_dim * (2 * heads + 2 * key_heads);
  if (query_bias()) attention += head_dim * (heads + 2 * key_heads);
  if (attention_bias) attention += dim;
  if (head_norm()) attention += 2 * head_dim;
  const int64_t mlp = 3 * dim * hidden;
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
  if (!kind_defaults().contains(config.kind))
    throw UserError(cat("model kind '", config.kind, "' is not known; valid: ", join(llama_kinds())));
  const bool listed = !config.windowed.empty();
  STARTRAIL_CHECK(config.window == 0 || config.kind != "llama", "a Llama has no window");
  STARTRAIL_CHECK(
      !listed || (static_cast<int64_t>(config.windowed.size()) == config.layers && config.kind != "mistral"),
      "layers without their window");
}

LlamaConfig llama_preset(std::string_view name) {
  for (const Preset& p : kPresets)
    if (p.name == name)
      return {.vocabulary = p.vocabulary,
              .dim = p.dim,
              .layers = p.layers,
              .heads = p.heads,
              .key_heads = p.key_heads,
              .head_dim = p.head_dim,
              .hidden = p.hidden,
              .tied = p.tied};
  throw UserError(cat("preset '", name, "' is not known; valid: ", join(llama_presets())));
}

std::vector<std::string> llama_presets() {
  std::vector<std::string> names;
  for (const Preset& preset : kPresets) names.emplace_back(preset.name);
  return names;
}

const std::vector<std::string>& llama_kinds() {
  static const std::vector<std::string> kinds{"llama", "qwen2", "qwen3", "mistral"};
  return kinds;
}

std::string llama_class(const LlamaConfig& config) {
  std::string name = config.kind;
  name[0] = static_cast<char>(std::toupper(name[0]));
  return name + "ForCausalLM";
}

LlamaConfig llama_from_json(const json& j, std::string_view where) {
  if (!j.is_object()) throw UserError(cat(where, " is no model configuration: it is not a JSON object"));
  LlamaConfig config;
  config.kind = get_or<std::string>(j, "model_type", "", where);
  const auto usual = kind_defaults().find(config.kind);
  if (usual == kind_defaults().end())
    throw UserError(cat(where, " has model_type '", config.kind, "'; supported: ", join(llama_kinds())));
  config.vocabulary = get<int64_t>(j, "vocab_size", where);
  config.dim = get<int64_t>(j, "hidden_size", where);
  config.layers = get<int64_t>(j, "num_hidden_layers", where);
  config.heads = get<int64_t>(j, "num_attention_heads", where);
  const bool as_heads = usual->second.key_heads == 0 || j.contains("num_key_value_heads");  // there, but null
  config.key_heads = get_or(j, "num_key_value_heads", as_heads ? config.heads : usual->second.key_heads, where);
  if (config.heads < 1) throw UserError(cat(where, ": num_attention_heads must be 1 or more"));
  const int64_t head_dim = usual->second.head_dim > 0 ? usual->second.head_dim : config.dim / config.heads;
  config.head_dim = get_or(j, "head_dim", head_dim, where);
  config.hidden = get<int64_t>(j, "intermediate_size", where);
  config.norm_eps = get_or(j, "rms_norm_eps", 1e-6, where);
  config.tied = get_or(j, "tie_word_embeddings", false, where);
  config.max_tokens = get_or(j, "max_position_embeddings", usual->second.max_tokens, where);
  config.rope = rope_from_json(j, where);
  // Other kinds do not look at it.
  if (config.kind == "llama" || config.kind == "qwen3")
    config.attention_bias = get_or(j, "attention_bias", false, where);
  read_windows(j, config, where);
  if (config.kind == "llama" && get_or(j, "mlp_bias", false, where))
    throw UserError(cat(where, ": mlp_bias is not supported, only false"));
  if (j.contains("quantization_config") && !j["quantization_config"].is_null())
    throw UserError(cat(where, ": quantization_config is not supported, only weights that are not quantized"));
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
  json j = {{"architectures", {llama_class(config)}},
            {"model_type", config.kind},
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
            {"attention_dropout", 0.0},
            {"bos_token_id", nullptr},
            {"eos_token_id", nullptr},
            {"pad_token_id", nullptr}};
  write_kind(j, config);
  return j;
}

}  // namespace startrail

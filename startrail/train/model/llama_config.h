// The shape of a Llama model or one of its relatives, Qwen2, Qwen3 and Mistral: presets, and Hugging Face's config.json
// read (old keys and new) and written.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace startrail {

// Rotary positions. `type` default, linear, llama3 or yarn; what a type does not name it does not use.
struct Rope {
  std::string type = "default";
  double theta = 10000;
  double factor = 1;                             // how far positions are stretched
  double original_tokens = 0;                    // llama3, yarn: the length before stretching
  double low_frequency = 1, high_frequency = 4;  // llama3
  double beta_fast = 32, beta_slow = 1;          // yarn
  double attention_factor = 0;                   // yarn; 0: 0.1 ln(factor) + 1
  bool truncate = true;                          // yarn: whole numbers for the ends of the ramp
};

// Angles per position, [dim / 2], and what cos and sin are multiplied by.
struct RopeFrequencies {
  std::vector<double> frequencies;
  double gain = 1;
};
RopeFrequencies rope_frequencies(const Rope& rope, int64_t dim);

struct LlamaConfig {
  int64_t vocabulary = 256;
  int64_t dim = 128;
  int64_t layers = 4;
  int64_t heads = 4, key_heads = 2;
  int64_t head_dim = 32;
  int64_t hidden = 384;  // of the SwiGLU
  double norm_eps = 1e-5;
  bool tied = false;  // the head shares the embedding's weights
  Rope rope{};
  int64_t max_tokens = 4096;     // written as max_position_embeddings; nothing here depends on it
  std::string kind = "llama";    // llama, qwen2, qwen3, mistral: config.json's model_type
  bool attention_bias = false;   // llama, qwen3: all four projections of attention have a bias
  int64_t window = 0;            // not llama; > 0: a query sees only the last `window` keys, itself among them
  std::vector<bool> windowed{};  // qwen2, qwen3: by layer, whether it has the window; empty: all have

  bool query_bias() const { return attention_bias || kind == "qwen2"; }  // of queries, keys and values
  bool head_norm() const { return kind == "qwen3"; }                     // RMSNorm of each head's queries and keys
  int64_t window_of(int64_t layer) const { return windowed.empty() || windowed[layer] ? window : 0; }
  int64_t parameters() const;
};

// UserError, naming the value and the rule, for shapes that cannot be.
void check_config(const LlamaConfig& config);

// tiny, gpt-125m, gpt-1b, gpt-3b, gpt-7b; UserError names them.
LlamaConfig llama_preset(std::string_view name);
std::vector<std::string> llama_presets();
const std::vector<std::string>& llama_kinds();

// What transformers calls a model of this kind: "Qwen2ForCausalLM".
std::string llama_class(const LlamaConfig& config);

// UserError for another model_type, a missing key, or something that would change the result and is not supported here
// (another activation, another kind of rope or of layer); `where` names the file. Keys left out are as transformers has
// them for that model_type.
LlamaConfig llama_from_json(const nlohmann::json& json, std::string_view where);
nlohmann::json to_json(const LlamaConfig& config);

}  // namespace startrail

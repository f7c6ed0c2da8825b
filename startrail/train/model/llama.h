// The Llama model and its relatives (llama_config.h): single-device code, with weights named as Hugging Face names
// them. What it knows of ranks is in the Sequence it is given; generate.h runs it token by token.
#pragma once

#include "startrail/train/model/llama_config.h"
#include "startrail/train/model/model.h"
#include "startrail/train/model/ops.h"

namespace startrail {

// Keys and values of the tokens seen so far, [1, key heads, room, head dim] for each layer.
struct KeyValueCache {
  std::vector<at::Tensor> keys, values;
  int64_t tokens = 0;
};

class Llama : public Model {
 public:
  explicit Llama(const LlamaConfig& config);

  Loss loss(const Example& example, const Sequence& sequence) const override;
  nlohmann::json config() const override;

  // Logits of all tokens, [own tokens, vocabulary]: for comparisons; training never makes them.
  at::Tensor logits(const Example& example, const Sequence& sequence) const;

  // On one device, without gradients: takes `tokens` [count] that follow those in the cache, adds them to it, and
  // returns the logits of the last one, [vocabulary] float32.
  at::Tensor next_logits(const at::Tensor& tokens, KeyValueCache& cache) const;
  KeyValueCache make_cache(int64_t room) const;

  const LlamaConfig& shape() const { return config_; }

 private:
  at::Tensor hidden(const Example& example, const Sequence& sequence) const;
  Rotation rotation(const at::Tensor& positions) const;
  std::vector<at::Tensor> layer_weights(int64_t layer) const;
  const at::Tensor& last_gain() const;
  const at::Tensor& head() const;

  LlamaConfig config_;
  RopeFrequencies frequencies_;
  int64_t per_layer_ = 0;  // parameters of a layer
};

// Tokens whose logits are made at a time.
int64_t loss_chunk(int64_t vocabulary);

}  // namespace startrail

// Text from a model, token by token, with a key/value cache. One device.
#pragma once

#include <functional>

#include "startrail/train/model/llama.h"

namespace startrail {

struct SampleOptions {
  int64_t tokens = 256;      // to generate
  double temperature = 0.8;  // 0: always the likeliest
  int64_t top_k = 0;         // only the k likeliest; 0: all
  double top_p = 1;          // only the likeliest that together have this probability
  uint64_t seed = 1;
};

// UserError for options that mean nothing.
void check_options(const SampleOptions& options);

// UserError for a prompt without tokens, or with one beyond the vocabulary.
void check_prompt(const std::vector<int64_t>& prompt, int64_t vocabulary);

// One draw from logits [vocabulary].
int64_t draw(const at::Tensor& logits, const SampleOptions& options, at::Generator& generator);

// Calls `on_token` for each new token; false ends it. Checks options and prompt.
void generate(const Llama& model, const std::vector<int64_t>& prompt, const SampleOptions& options,
              const std::function<bool(int64_t)>& on_token);

}  // namespace startrail

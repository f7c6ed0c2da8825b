// Text from a GPT's folder: the prompt read as the model reads text, and what it writes given back piece by piece. One
// rank; generate.h does the work.
#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <string_view>

#include "startrail/train/model/generate.h"
#include "startrail/train/model/weights.h"

namespace startrail {

struct TextOptions {
  std::filesystem::path folder = {};  // of the model: model_folder(...)
  std::string prompt = {};            // text; token ids "1,2,3" for a model that is not byte-level and has no tokenizer
  std::filesystem::path tokenizer = {};  // a tokenizer.json or its folder; "": none
  SampleOptions sampling = {};
  at::ScalarType type = at::kFloat;
  Which which = Which::mean;
};

// Calls `on_text` with the prompt and then with each new piece, until it returns false. UserError for options, prompts
// and tokenizers that do not fit the model, and for more tokens than there is memory for.
void sample_text(const TextOptions& options, const std::function<bool(std::string_view)>& on_text);

}  // namespace startrail

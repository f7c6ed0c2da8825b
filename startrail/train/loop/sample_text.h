// Text from a GPT's folder: prompts read as the model reads text, and what it writes given back piece by piece. One
// rank; generate.h does the work.
#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "startrail/train/model/generate.h"
#include "startrail/train/model/weights.h"

namespace startrail {

struct TextOptions {
  std::filesystem::path folder = {};        // of the model: model_folder(...)
  std::vector<std::string> prompts = {""};  // text; ids "1,2,3" for a model that is not byte-level without a tokenizer
  std::filesystem::path tokenizer = {};     // a tokenizer.json or its folder; "": the model's own, if it has one
  SampleOptions sampling = {};
  at::ScalarType type = at::kFloat;
  Which which = Which::mean;
  std::function<void(const std::string&)> on_warning = {};
};

// What came of a prompt. Texts of a model whose tokens cannot be spelled are the ids.
struct WrittenText {
  std::string prompt;
  std::vector<int64_t> prompt_ids, ids;
  std::string text;  // without the prompt
};

// Calls `on_text` with each prompt and then with each new piece of its text, and the prompt's number, until it returns
// false, which ends everything. With a tokenizer a text ends where the model says so. UserError for options, prompts
// and tokenizers that do not fit the model, and for more tokens than there is memory for, before anything is written; a
// warning for texts that go past max_position_embeddings while nothing stretches positions.
std::vector<WrittenText> sample_texts(const TextOptions& options,
                                      const std::function<bool(size_t number, std::string_view piece)>& on_text);

}  // namespace startrail

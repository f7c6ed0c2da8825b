// What goes with a model's weights wherever they go: the files of its tokenizer, and the ids of special tokens in
// config.json and generation_config.json, as Hugging Face has them. Read from the folder a model comes from or from the
// folder of tokens it is trained on; checkpoints and exported models hold them.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <set>
#include <string>

namespace startrail {

struct Companions {
  std::map<std::string, std::string> files = {};  // what is in each, by name
  std::string ids = "{}";  // bos_token_id and the like as config.json has them: an object, as JSON
};

// Of the model in folder `model` ("": a new one), and where it has no tokenizer, or no end, that of the tokens in
// folder `tokens` ("": none), whose documents end with `end_token`. A tokenizer.json alone gets the
// tokenizer_config.json that transformers needs to load it, and ids a generation_config.json. UserError for files that
// are no whole JSON.
Companions make_companions(const std::filesystem::path& model, const std::filesystem::path& tokens = {},
                           int64_t end_token = -1);

// The ids that end a text of the model in this folder; none where it does not say.
std::set<int64_t> end_ids(const std::filesystem::path& model);

}  // namespace startrail

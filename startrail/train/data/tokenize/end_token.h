// The token that a tokenizer ends a text with, which is in files beside its tokenizer.json or has a well-known name.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include "startrail/train/tokenizer/tokenizer.h"

namespace startrail {

// The folder of a tokenizer that is given as a folder or as its tokenizer.json; and that file.
std::filesystem::path tokenizer_folder(const std::filesystem::path& path);
std::filesystem::path tokenizer_file(const std::filesystem::path& path);

// `wanted` is an id, if it is a number, or a token; "" for the tokenizer's own: the eos_token of tokenizer_config.json,
// the eos_token_id of generation_config.json or config.json, or a token with one of the usual names. UserError when
// there is none.
int64_t find_end_token(const Tokenizer& tokenizer, const std::filesystem::path& path, const std::string& wanted);

}  // namespace startrail

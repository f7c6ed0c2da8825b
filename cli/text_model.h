// Text of byte-level models for the terminal, shared by `train` and `sample`.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "startrail/train/model/generate.h"

namespace startrail::cli {

// Tokens of a byte-level model as text.
std::string bytes_text(const std::vector<int64_t>& tokens);

// Without control characters and broken UTF-8, which would upset a terminal; `indent` before every line, or on one line
// (with \n spelled out) when there is none.
std::string printable(std::string_view text, std::string_view indent = "");

}  // namespace startrail::cli

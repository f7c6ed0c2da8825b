// What happens to text before BPE: the pre_tokenizer of a tokenizer.json cuts it into pieces, and its normalizer may
// ask for NFC. Used by tokenizer.cc only.
#pragma once

#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string_view>
#include <vector>

#include "startrail/train/tokenizer/regex.h"

namespace startrail {

// One step each: with a pattern it isolates what matches, without one it puts a space before a piece that has none.
using Cuts = std::vector<std::optional<Regex>>;

// From the file's "pre_tokenizer". UserError for kinds that are not supported.
Cuts make_cuts(const nlohmann::json& pre_tokenizer);

// Calls `piece` with every piece of a text that is not empty, in order, from the given step on; none is empty.
void cut(const Cuts& cuts, std::string_view text, const std::function<void(std::string_view)>& piece, size_t step = 0);

// From the file's "normalizer": whether it is NFC. UserError for kinds other than NFC and none.
bool needs_nfc(const nlohmann::json& normalizer);

// UserError when the text might change under NFC. It is not computed here: text passes that has no combining marks, no
// single jamo and none of the letters that NFC replaces, such as compatibility ideographs.
void check_nfc(std::string_view text);

}  // namespace startrail

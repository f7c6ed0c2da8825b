// Unicode's composed form, NFC, which some tokenizers want their text in (Qwen's). Used by tokenizer.cc only.
#pragma once

#include <string>
#include <string_view>

namespace startrail {

// The text in NFC: the text itself where nothing changes, else what was put into `room`. Bytes that are not UTF-8 stay
// as they are.
std::string_view to_nfc(std::string_view text, std::string& room);

}  // namespace startrail

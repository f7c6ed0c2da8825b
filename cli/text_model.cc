#include "cli/text_model.h"

namespace startrail::cli {
namespace {

// Length of the UTF-8 character at `text[i]`, 0 when it is none.
size_t character_length(std::string_view text, size_t i) {
  const auto byte = [&](size_t at) { return static_cast<unsigned char>(text[at]); };
  const size_t length = byte(i) < 0x80 ? 1 : byte(i) >= 0xF0 && byte(i) < 0xF5 ? 4 : byte(i) >= 0xE0 ? 3 : 2;
  if (byte(i) >= 0xF5 || (byte(i) >= 0x80 && byte(i) < 0xC2) || i + length > text.size()) return 0;
  for (size_t k = 1; k < length; ++k)
    if ((byte(i + k) & 0xC0) != 0x80) return 0;
  return length;
}

}  // namespace

std::string bytes_text(const std::vector<int64_t>& tokens) {
  std::string text;
  for (int64_t token : tokens) text += static_cast<char>(token);
  return text;
}

std::string printable(std::string_view text, std::string_view indent) {
  std::string result(indent);
  for (size_t i = 0; i < text.size();) {
    const size_t length = character_length(text, i);
    const auto byte = static_cast<unsigned char>(text[i]);
    if (byte == '\n' && !indent.empty())
      result.append("\n").append(indent);
    else if (byte == '\n')
      result += "\\n";
    else if (byte == '\t')
      result += ' ';
    else if (length == 0 || byte < 0x20 || byte == 0x7F)
      result += "\u00B7";
    else
      result.append(text.substr(i, length));
    i += length == 0 ? 1 : length;
  }
  return result;
}

}  // namespace startrail::cli

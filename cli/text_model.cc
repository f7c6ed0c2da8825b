#include "cli/text_model.h"

#include "startrail/train/tokenizer/regex.h"

namespace startrail::cli {
std::string bytes_text(const std::vector<int64_t>& tokens) {
  std::string text;
  for (int64_t token : tokens) text += static_cast<char>(token);
  return text;
}

std::string printable(std::string_view text, std::string_view indent) {
  std::string result(indent);
  for (size_t i = 0; i < text.size();) {
    const size_t length = letter_size(text.substr(i));
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

// UTF-8, letter by letter, and what kind each letter is. Used by the tokenizer's files, and by who shows or checks
// text.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

namespace startrail {

// Unicode's White_Space, as a set of letters.
inline constexpr std::string_view kWhiteSpace =
    "\t\n\v\f\r \u0085\u00a0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a\u2028\u2029\u202f"
    "\u205f\u3000";

// The bytes of the UTF-8 letter that the text starts with; 0 when it starts with none.
size_t letter_size(std::string_view text);

// How many of the text's first bytes are UTF-8.
size_t valid_size(std::string_view text);

// The number of a letter, which is valid UTF-8 and all there is.
inline uint32_t code_point(std::string_view letter) {
  const auto byte = [&](size_t i) { return static_cast<uint32_t>(static_cast<unsigned char>(letter[i])); };
  switch (letter.size()) {
    case 1:
      return byte(0);
    case 2:
      return (byte(0) & 0x1f) << 6 | (byte(1) & 0x3f);
    case 3:
      return (byte(0) & 0x0f) << 12 | (byte(1) & 0x3f) << 6 | (byte(2) & 0x3f);
    default:
      return (byte(0) & 0x07) << 18 | (byte(1) & 0x3f) << 12 | (byte(2) & 0x3f) << 6 | (byte(3) & 0x3f);
  }
}

// \p{L}, \p{N}, white space, and all else.
enum class LetterKind : uint8_t { other, word, number, space };

// The kind of every code point, as PCRE2 has it.
const std::vector<LetterKind>& letter_kinds();

}  // namespace startrail

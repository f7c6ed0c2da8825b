#include "startrail/train/tokenizer/letters.h"

#include <cstring>
#include <string>

#include "startrail/train/tokenizer/regex.h"

namespace startrail {

size_t letter_size(std::string_view text) {
  const auto byte = [&](size_t i) { return i < text.size() ? static_cast<unsigned char>(text[i]) : 0u; };
  const unsigned first = byte(0), second = byte(1);
  if (first < 0x80) return text.empty() ? 0 : 1;
  const size_t size = first < 0xe0 ? 2 : first < 0xf0 ? 3 : 4;
  // Longer than needed, a surrogate, or past U+10FFFF.
  if (first < 0xc2 || first > 0xf4 || (first == 0xe0 && second < 0xa0) || (first == 0xed && second > 0x9f) ||
      (first == 0xf0 && second < 0x90) || (first == 0xf4 && second > 0x8f))
    return 0;
  for (size_t i = 1; i < size; ++i)
    if ((byte(i) & 0xc0) != 0x80) return 0;
  return size;
}

size_t valid_size(std::string_view text) {
  size_t at = 0;
  while (at < text.size()) {
    uint64_t eight;
    if (at + sizeof eight <= text.size()) {
      std::memcpy(&eight, text.data() + at, sizeof eight);
      if ((eight & 0x8080808080808080) == 0) {
        at += sizeof eight;
        continue;
      }
    }
    const size_t size = letter_size(text.substr(at));
    if (size == 0) break;
    at += size;
  }
  return at;
}

namespace {

void append_letter(uint32_t point, std::string& text) {
  const auto tail = [&](int shift) { text += static_cast<char>(0x80 | (point >> shift & 0x3f)); };
  if (point < 0x80) {
    text += static_cast<char>(point);
  } else if (point < 0x800) {
    text += static_cast<char>(0xc0 | point >> 6);
  } else if (point < 0x10000) {
    text += static_cast<char>(0xe0 | point >> 12);
  } else {
    text += static_cast<char>(0xf0 | point >> 18);
    tail(12);
  }
  if (point >= 0x800) tail(6);
  if (point >= 0x80) tail(0);
}

std::vector<LetterKind> make_kinds() {
  constexpr uint32_t kPoints = 0x110000;
  std::string all;
  for (uint32_t point = 0; point < kPoints; ++point)
    if (point < 0xd800 || point > 0xdfff) append_letter(point, all);
  std::vector<LetterKind> kinds(kPoints, LetterKind::other);
  const auto mark = [&](const char* pattern, std::string_view text, LetterKind kind) {
    Regex(pattern).split(text, [&](std::string_view piece, bool matches) {
      for (size_t size; matches && !piece.empty(); piece.remove_prefix(size)) {
        size = letter_size(piece);
        kinds[code_point(piece.substr(0, size))] = kind;
      }
    });
  };
  mark(R"(\p{L}+)", all, LetterKind::word);
  mark(R"(\p{N}+)", all, LetterKind::number);
  mark(R"(\s+)", kWhiteSpace, LetterKind::space);
  return kinds;
}

}  // namespace

const std::vector<LetterKind>& letter_kinds() {
  static const std::vector<LetterKind> kinds = make_kinds();
  return kinds;
}

}  // namespace startrail

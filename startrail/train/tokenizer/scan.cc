#include "startrail/train/tokenizer/scan.h"

#include "startrail/train/tokenizer/letters.h"

namespace startrail {
namespace {

using enum LetterKind;

// A place in the text, with the kind of the letter there.
struct Cursor {
  const char *at, *end;
  const LetterKind* kinds = letter_kinds().data();

  bool done() const { return at == end; }
  // The size and the kind of the letter here; not at the end.
  size_t size() const {
    const auto byte = static_cast<unsigned char>(*at);
    return byte < 0x80 ? 1 : byte < 0xe0 ? 2 : byte < 0xf0 ? 3 : 4;
  }
  LetterKind kind() const {
    const auto byte = static_cast<unsigned char>(*at);
    return byte < 0x80 ? kinds[byte] : kinds[code_point({at, size()})];
  }
  bool is(LetterKind wanted) const { return !done() && kind() == wanted; }
  bool is_line_end() const { return !done() && (*at == '\n' || *at == '\r'); }
  void step() { at += size(); }
  void skip(LetterKind wanted) {
    while (is(wanted)) step();
  }
};

// The bytes of 's, 't, 're, 've, 'm, 'll or 'd at the start of the text; 0 without one.
size_t contraction(std::string_view text, bool any_case) {
  const auto letter = [&](size_t i) {
    const char found = i < text.size() ? text[i] : '\0';
    return any_case && found >= 'A' && found <= 'Z' ? static_cast<char>(found | 0x20) : found;
  };
  switch (letter(1)) {
    case 's':
    case 't':
    case 'm':
    case 'd':
      return 2;
    case 'r':
    case 'v':
      return letter(2) == 'e' ? 3 : 0;
    case 'l':
      return letter(2) == 'l' ? 3 : 0;
    default:  // U+017F is an s too
      return any_case && text.substr(1).starts_with("\u017f") ? 3 : 0;
  }
}

// White space up to its last line end, if `lines`; else all but the letter before a word, which may belong to it.
size_t white_space(Cursor cursor, bool lines) {
  const char *const begin = cursor.at, *last = begin, *line = nullptr;
  for (; cursor.is(space); cursor.step()) {
    last = cursor.at;
    if (cursor.is_line_end()) line = cursor.at + 1;
  }
  if (lines && line) return static_cast<size_t>(line - begin);
  return static_cast<size_t>((cursor.done() || last == begin ? cursor.at : last) - begin);
}

}  // namespace

size_t Scan::next(std::string_view text) const {
  if (text[0] == '\'')
    if (const size_t size = contraction(text, any_case); size > 0) return size;
  Cursor cursor{text.data(), text.data() + text.size()};
  const auto size = [&] { return static_cast<size_t>(cursor.at - text.data()); };
  Cursor after = cursor;
  after.step();
  const LetterKind first = cursor.kind();
  const bool leads = text[0] == ' ' || (marked && (first == other || first == space) && !cursor.is_line_end());
  if (first == word || (leads && after.is(word))) {
    cursor = after;
    cursor.skip(word);
    return size();
  }
  if (first == number || (text[0] == ' ' && !marked && after.is(number))) {
    cursor = after;
    for (int count = 1; cursor.is(number) && (most_numbers == 0 || count < most_numbers); ++count) cursor.step();
    return size();
  }
  if (first == other || (text[0] == ' ' && after.is(other))) {
    cursor = after;
    cursor.skip(other);
    while (marked && cursor.is_line_end()) cursor.step();
    return size();
  }
  return white_space(cursor, marked);
}

bool may_cut_after(std::string_view text, size_t line_end) {
  const auto visible = [](unsigned char byte) { return byte > ' ' && byte < 0x7f; };
  if (line_end == 0 || line_end + 1 >= text.size()) return false;
  // The first bytes of Cyrillic letters, CJK ideographs and Hangul syllables.
  const auto next = static_cast<unsigned char>(text[line_end + 1]);
  const bool joins_none =
      next == 0xd0 || next == 0xd1 || (next >= 0xe4 && next <= 0xe9) || next == 0xeb || next == 0xec;
  if (!visible(next) && !joins_none) return false;
  size_t last = line_end - 1;
  if (static_cast<unsigned char>(text[last]) < 0x80) return visible(static_cast<unsigned char>(text[last]));
  while (last > 0 && (text[last] & 0xc0) == 0x80) --last;
  const std::string_view letter = text.substr(last, line_end - last);
  return letter_size(letter) == letter.size() && kWhiteSpace.find(letter) == std::string_view::npos;
}

std::optional<Scan> make_scan(const std::string& pattern) {
  if (pattern == kGpt2Pattern) return Scan{.any_case = false, .marked = false, .most_numbers = 0};
  if (pattern == kLlama3Pattern) return Scan{.any_case = true, .marked = true, .most_numbers = 3};
  if (pattern == kQwen2Pattern) return Scan{.any_case = true, .marked = true, .most_numbers = 1};
  return std::nullopt;
}

}  // namespace startrail

// The regular expressions of a tokenizer.json, which are written for Oniguruma, run by PCRE2. Patterns that the two
// would read differently are refused. Used by the tokenizer's other files only.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "startrail/train/tokenizer/letters.h"

namespace startrail {

// Calls `letters` with the parts of the text that are UTF-8 and `rest` with what lies between, in order; none is empty.
template <class Letters, class Rest>
void split_valid(std::string_view text, const Letters& letters, const Rest& rest) {
  while (!text.empty()) {
    const size_t valid = valid_size(text);
    if (valid > 0) letters(text.substr(0, valid));
    text.remove_prefix(valid);
    size_t invalid = 0;
    while (invalid < text.size() && letter_size(text.substr(invalid)) == 0) ++invalid;
    if (invalid > 0) rest(text.substr(0, invalid));
    text.remove_prefix(invalid);
  }
}

class Regex {
 public:
  // UserError when the pattern is wrong or not supported.
  explicit Regex(const std::string& pattern);

  // Calls piece(std::string_view, bool matches) with the matches and what lies between them, in order; none is empty.
  // Bytes that are not UTF-8 match nothing. UserError when the pattern needs too many tries on this text.
  template <class Piece>
  void split(std::string_view text, const Piece& piece) const {
    split_valid(
        text, [&](std::string_view letters) { split_letters(letters, piece); },
        [&](std::string_view rest) { piece(rest, false); });
  }

 private:
  struct Match {
    size_t begin, end;
  };
  // The first match from `from` on, into `match`; false when there is none.
  bool find(std::string_view text, size_t from, Match& match) const;

  template <class Piece>
  void split_letters(std::string_view text, const Piece& piece) const {
    size_t done = 0;  // up to here the text has been handed over
    for (Match match{0, 0}; match.end <= text.size() && find(text, match.end, match);) {
      if (match.begin > done) piece(text.substr(done, match.begin - done), false);
      if (match.end > match.begin) piece(text.substr(match.begin, match.end - match.begin), true);
      done = match.end;
      if (match.end == match.begin)  // an empty match only cuts
        match.end += match.end < text.size() ? letter_size(text.substr(match.end)) : 1;
    }
    if (done < text.size()) piece(text.substr(done), false);
  }

  std::string pattern_;
  std::shared_ptr<void> code_;
};

}  // namespace startrail

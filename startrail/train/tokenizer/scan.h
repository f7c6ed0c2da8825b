// The patterns of well-known tokenizers by hand: the same pieces as PCRE2 gives, several times as fast. Used by
// split.h.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace startrail {

// Where the known patterns differ. They cut words, numbers, signs and white space apart; every letter is in a piece.
struct Scan {
  bool any_case;     // 'S as 's
  bool marked;       // a word may start with any one sign or space, not a space only; numbers with none; and line ends
                     // stay with the signs before them, or end a piece of white space
  int most_numbers;  // in a piece; 0 for any

  // The bytes of the first piece. The text is UTF-8 and not empty.
  size_t next(std::string_view text) const;
};

inline constexpr const char* kGpt2Pattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
inline constexpr const char* kLlama3Pattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
inline constexpr const char* kQwen2Pattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

// Whether a text that is cut after this line end has the same pieces, with all the patterns above, and the same NFC:
// visible letters are beside it, the next of a kind that joins none before. False where that is not known.
bool may_cut_after(std::string_view text, size_t line_end);

// Nothing for a pattern that is not known here.
std::optional<Scan> make_scan(const std::string& pattern);

}  // namespace startrail

// The regular expressions of a tokenizer.json, which are written for Oniguruma, run by PCRE2. Patterns that the two
// would read differently are refused. Used by the tokenizer's other files only.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>

namespace startrail {

// Unicode's White_Space, as a set of letters.
inline constexpr std::string_view kWhiteSpace =
    "\t\n\v\f\r \u0085\u00a0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a\u2028\u2029\u202f"
    "\u205f\u3000";

// The bytes of the UTF-8 letter that the text starts with; 0 when it starts with none.
size_t letter_size(std::string_view text);

class Regex {
 public:
  // UserError when the pattern is wrong or not supported.
  explicit Regex(const std::string& pattern);

  // Calls `piece` with the matches and what lies between them, in order; none is empty. Bytes that are not UTF-8 match
  // nothing. UserError when the pattern needs too many tries on this text.
  void split(std::string_view text, const std::function<void(std::string_view piece, bool matches)>& piece) const;

 private:
  void split_letters(std::string_view text, const std::function<void(std::string_view, bool)>& piece) const;

  std::string pattern_;
  std::shared_ptr<void> code_;
};

}  // namespace startrail

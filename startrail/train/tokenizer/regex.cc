#include "startrail/train/tokenizer/regex.h"

#include <algorithm>
#include <cctype>
#include <tuple>
#include <utility>

#include "startrail/base/error.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

namespace startrail {
namespace {

std::string message_of(int error) {
  PCRE2_UCHAR text[256];
  pcre2_get_error_message(error, text, sizeof text);
  return reinterpret_cast<const char*>(text);
}

PCRE2_SPTR units(std::string_view text) { return reinterpret_cast<PCRE2_SPTR>(text.data()); }

UserError unsupported(const std::string& pattern, std::string_view part) {
  return UserError(
      cat("pattern ", pattern, " is not supported because of ", part,
          ": StarTrail takes letters, sets, groups, repeats and the escapes \\s \\S \\d \\D \\p \\P \\r \\n "
          "\\t \\x{...}"));
}

bool has(std::string_view letters, char letter) { return letters.find(letter) != std::string_view::npos; }

// The escape that `rest` starts with, as PCRE2 has to see it, and its size in the pattern. PCRE2's own \s also takes
// U+180E, which is no white space since Unicode 6.3.
std::pair<std::string, size_t> escape_for_pcre(const std::string& pattern, std::string_view rest, bool in_set) {
  const char letter = rest.size() > 1 ? rest[1] : '\0';
  if (letter == 's') return {in_set ? std::string(kWhiteSpace) : cat("[", kWhiteSpace, "]"), 2};
  if (letter == 'S' && !in_set) return {cat("[^", kWhiteSpace, "]"), 2};
  const size_t close = rest.substr(0, 3).ends_with('{') ? rest.find('}') : std::string_view::npos;
  if (has("pPx", letter) && close != std::string_view::npos) return {std::string(rest.substr(0, close + 1)), close + 1};
  if (has("dDrnt", letter) || std::ispunct(static_cast<unsigned char>(letter)) || letter == ' ')
    return {std::string(rest.substr(0, 2)), 2};
  throw unsupported(pattern, cat(rest.substr(0, 2), in_set ? " in a set" : ""));
}

// A bracket that opens something PCRE2 would read differently, or "".
std::string_view differing_bracket(std::string_view rest) {
  if (rest.starts_with("(?")) {
    for (const char* group : {"(?:", "(?=", "(?!", "(?<=", "(?<!", "(?>", "(?i:", "(?-i:"})
      if (rest.starts_with(group)) return "";
    return rest.substr(0, 3);
  }
  if (rest.starts_with("(*")) return rest.substr(0, 2);
  if (!rest.starts_with('{')) return "";
  const size_t digits = rest.find_first_not_of("0123456789,", 1);
  const bool repeats = digits != std::string_view::npos && digits > 1 && rest[1] != ',' && rest[digits] == '}';
  return repeats && !has("+?*", digits + 1 < rest.size() ? rest[digits + 1] : ' ') ? "" : rest.substr(0, digits + 2);
}

// Lets through what Oniguruma and PCRE2 read alike. The differences: \w \b \h and others have another meaning, \uXXXX
// and [a[b]] and && are unknown to PCRE2, (?i) without a colon ends elsewhere, {,n} is literal, {n,m}+ is possessive.
std::string pattern_for_pcre(const std::string& pattern) {
  std::string out;
  bool in_set = false;
  for (std::string_view rest = pattern; !rest.empty();) {
    if (rest[0] == '\\') {
      const auto [part, size] = escape_for_pcre(pattern, rest, in_set);
      out += part;
      rest.remove_prefix(size);
      continue;
    }
    size_t size = 1;
    if (in_set) {
      if (rest[0] == '[' || rest.starts_with("&&")) throw unsupported(pattern, cat(rest[0], " in a set"));
      in_set = rest[0] != ']';
    } else if (rest[0] == '[') {
      in_set = true;
      size = rest.starts_with("[^") ? 2 : 1;
      if (rest.substr(size).starts_with(']')) throw unsupported(pattern, "a set that starts with ]");
    } else if (const std::string_view bracket = differing_bracket(rest); !bracket.empty()) {
      throw unsupported(pattern, bracket);
    }
    out += rest.substr(0, size);
    rest.remove_prefix(size);
  }
  return out;
}

}  // namespace

Regex::Regex(const std::string& pattern) : pattern_(pattern) {
  const std::string text = pattern_for_pcre(pattern);
  int error = 0;
  size_t offset = 0;
  // Oniguruma's ^ and $ are always about lines.
  pcre2_code* code =
      pcre2_compile(units(text), text.size(), PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE, &error, &offset, nullptr);
  if (!code) throw UserError(cat("pattern ", pattern, " is not valid: ", message_of(error)));
  pcre2_jit_compile(code, PCRE2_JIT_COMPLETE);  // where there is none it is slower, no more
  code_ = std::shared_ptr<void>(code, [](void* p) { pcre2_code_free(static_cast<pcre2_code*>(p)); });
}

bool Regex::find(std::string_view text, size_t from, Match& match) const {
  const auto* code = static_cast<const pcre2_code*>(code_.get());
  using Found = std::unique_ptr<pcre2_match_data, void (*)(pcre2_match_data*)>;
  thread_local const Found found(pcre2_match_data_create(1, nullptr), pcre2_match_data_free);
  const auto run = [&](uint32_t options) {
    return pcre2_match(code, units(text), text.size(), from, PCRE2_NO_UTF_CHECK | options, found.get(), nullptr);
  };
  int error = run(0);
  if (error == PCRE2_ERROR_JIT_STACKLIMIT) error = run(PCRE2_NO_JIT);
  if (error == PCRE2_ERROR_NOMATCH) return false;
  if (error < 0) throw UserError(cat("pattern ", pattern_, " fails on this text: ", message_of(error)));
  const size_t* ends = pcre2_get_ovector_pointer(found.get());
  match = {ends[0], ends[1]};
  return true;
}

}  // namespace startrail

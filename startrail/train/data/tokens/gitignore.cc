#include "startrail/train/data/tokens/gitignore.h"

#include <algorithm>
#include <cctype>

#include "startrail/base/text.h"

namespace startrail {
namespace {

constexpr size_t kNone = std::string_view::npos;

bool in_class(std::string_view name, int c) {
  static constexpr std::pair<std::string_view, int (*)(int)> kClasses[] = {
      {"alnum", std::isalnum}, {"alpha", std::isalpha}, {"blank", std::isblank}, {"cntrl", std::iscntrl},
      {"digit", std::isdigit}, {"graph", std::isgraph}, {"lower", std::islower}, {"print", std::isprint},
      {"punct", std::ispunct}, {"space", std::isspace}, {"upper", std::isupper}, {"xdigit", std::isxdigit}};
  const auto* known = std::find_if(std::begin(kClasses), std::end(kClasses), [&](auto& k) { return k.first == name; });
  return known != std::end(kClasses) && known->second(c);
}

// The character at `at`, which a backslash may quote; moves `at` past it.
unsigned char next_character(std::string_view pattern, size_t& at) {
  if (pattern[at] == '\\' && at + 1 < pattern.size()) ++at;
  return static_cast<unsigned char>(pattern[at++]);
}

// Whether the set that begins at `at` with '[' holds `c`; moves `at` past it. A set without an end holds nothing.
bool in_set(std::string_view pattern, size_t& at, unsigned char c) {
  const bool negated = ++at < pattern.size() && (pattern[at] == '!' || pattern[at] == '^');
  if (negated) ++at;
  bool found = false;
  for (bool first = true; at < pattern.size() && (first || pattern[at] != ']'); first = false) {
    const size_t end = pattern.substr(at, 2) == "[:" ? pattern.find(":]", at + 2) : kNone;
    if (end != kNone) {
      found |= in_class(pattern.substr(at + 2, end - at - 2), c);
      at = end + 2;
      continue;
    }
    const unsigned char low = next_character(pattern, at);
    unsigned char high = low;
    if (at + 1 < pattern.size() && pattern[at] == '-' && pattern[at + 1] != ']') high = next_character(pattern, ++at);
    found |= low <= c && c <= high;
  }
  return at++ < pattern.size() && found != negated;
}

// Whether `c` fits what stands at `at`, which is not a '*'; moves `at` past it.
bool fits_one(std::string_view pattern, size_t& at, unsigned char c) {
  if (pattern[at] == '[') return in_set(pattern, at, c);
  if (pattern[at] == '?') return ++at, true;
  if (pattern[at] == '\\' && at + 1 == pattern.size()) return false;
  return next_character(pattern, at) == c;
}

// A name without slashes. When it stops to fit, the last '*' takes one character more: earlier ones need not, because
// whatever they could leave to the last one it finds by itself.
bool fits_name(std::string_view pattern, std::string_view name) {
  size_t at = 0, i = 0, after_star = kNone, taken = 0;
  while (i < name.size()) {
    if (at < pattern.size() && pattern[at] == '*') {
      after_star = ++at;
      taken = i;
    } else if (at < pattern.size() && fits_one(pattern, at, static_cast<unsigned char>(name[i]))) {
      ++i;
    } else if (after_star != kNone) {
      at = after_star;
      i = ++taken;
    } else {
      return false;
    }
  }
  return pattern.find_first_not_of('*', at) == kNone;
}

// The same one level up, with "**" for '*'. At the end "**" stands for at least one name: "a/**" is not "a".
bool fits_path(const std::vector<std::string>& pattern, const std::vector<std::string>& path) {
  size_t at = 0, i = 0, after_star = kNone, taken = 0;
  while (i < path.size()) {
    if (at < pattern.size() && pattern[at] == "**") {
      after_star = ++at;
      taken = i;
    } else if (at < pattern.size() && fits_name(pattern[at], path[i])) {
      ++at;
      ++i;
    } else if (after_star != kNone) {
      at = after_star;
      i = ++taken;
    } else {
      return false;
    }
  }
  return at == pattern.size();
}

}  // namespace

Gitignore::Gitignore(std::string_view text) {
  if (text.starts_with("\xef\xbb\xbf")) text.remove_prefix(3);
  for (const std::string& row : split(text, '\n')) {
    std::string_view line = row;
    if (line.starts_with('#')) continue;
    if (line.ends_with('\r')) line.remove_suffix(1);
    while (line.ends_with(' ') && !line.ends_with("\\ ")) line.remove_suffix(1);
    const bool keeps = line.starts_with('!');
    if (keeps) line.remove_prefix(1);
    const bool only_folders = line.ends_with('/');
    if (only_folders) line.remove_suffix(1);
    const bool anywhere = line.find('/') == kNone;
    if (line.starts_with('/')) line.remove_prefix(1);
    if (line.empty()) continue;
    std::vector<std::string> parts = split(line, '/');
    for (std::string& part : parts)
      if (part.size() > 2 && part.find_first_not_of('*') == kNone) part = "**";
    if (anywhere) parts.insert(parts.begin(), "**");
    rules_.push_back({std::move(parts), only_folders, keeps});
  }
}

std::optional<bool> Gitignore::ignores(std::string_view path, bool is_folder) const {
  const std::vector<std::string> parts = split(path, '/');
  for (auto rule = rules_.rbegin(); rule != rules_.rend(); ++rule)
    if ((is_folder || !rule->only_folders) && fits_path(rule->parts, parts)) return !rule->keeps;
  return std::nullopt;
}

}  // namespace startrail

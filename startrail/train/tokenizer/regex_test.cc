#include "startrail/train/tokenizer/regex.h"

#include <gtest/gtest.h>

#include <vector>

#include "startrail/base/testing.h"

namespace startrail {
namespace {

// Matches in brackets, the rest as it stands: "a[1]|b".
std::string pieces(const std::string& pattern, std::string_view text) {
  std::vector<std::string> all;
  Regex(pattern).split(text, [&](std::string_view piece, bool matches) {
    all.push_back(matches ? cat("[", piece, "]") : std::string(piece));
  });
  return join(all, "|");
}

std::string refusal(const std::string& pattern) {
  return error_of([&] { Regex regex(pattern); });
}

std::string unsupported(std::string_view pattern, std::string_view part) {
  return cat(
      "pattern ", pattern, " is not supported because of ", part,
      ": StarTrail takes letters, sets, groups, repeats and the escapes \\s \\S \\d \\D \\p \\P \\r \\n \\t \\x{...}");
}

TEST(Regex, IsolatesMatches) {
  EXPECT_EQ(pieces("b+", "abbcb"), "a|[bb]|c|[b]");
  EXPECT_EQ(pieces("b+", "xyz"), "xyz");
  EXPECT_EQ(pieces("b+", ""), "");
  EXPECT_EQ(pieces("\\p{N}{1,3}", "a12345"), "a|[123]|[45]");
  EXPECT_EQ(pieces("\\d+|\\D", "1\u0661a"), "[1\u0661]|[a]");
  EXPECT_EQ(pieces("(?i:'ll)|\\.", "we'LL."), "we|['LL]|[.]");
  EXPECT_EQ(pieces("[^\\r\\n\\p{L}]", "a-\n\u661f!"), "a|[-]|\n\u661f|[!]");
  EXPECT_EQ(pieces("\\{|\\x{661f}|[\\]a-c]+", "{x]b\u661f"), "[{]|x|[]b]|[\u661f]");
}

TEST(Regex, EmptyMatchesOnlyCut) {
  EXPECT_EQ(pieces("(?=b)", "abab"), "a|ba|b");
  EXPECT_EQ(pieces("b*", "\u661fbb\u8f68"), "\u661f|[bb]|\u8f68");
  EXPECT_EQ(pieces("^", "a\nb\n"), "a\n|b\n");
  EXPECT_EQ(pieces("$", "a\nb"), "a|\nb");
}

TEST(Regex, WhiteSpaceIsUnicodes) {
  for (const char* space :
       {"\t", "\v", "\r", " ", "\u0085", "\u00a0", "\u1680", "\u2003", "\u2028", "\u202f", "\u3000"}) {
    EXPECT_EQ(pieces("\\s+", cat("a", space, "b")), cat("a|[", space, "]|b"));
    EXPECT_EQ(pieces("[\\s]+", cat("a", space, "b")), cat("a|[", space, "]|b"));
    EXPECT_EQ(pieces("\\S", space), space);
    EXPECT_EQ(pieces("[^\\s]", space), space);
  }
  for (const char* other : {"\u180e", "\u200b", "\u2060", "\ufeff", "x"}) {
    EXPECT_EQ(pieces("\\s", other), other);
    EXPECT_EQ(pieces("\\S", other), cat("[", other, "]"));
    EXPECT_EQ(pieces("[^\\s]", other), cat("[", other, "]"));
  }
}

TEST(Regex, BytesThatAreNotUtf8MatchNothing) {
  EXPECT_EQ(pieces("\\S+",
                   "ab\xff\xfe"
                   "cd\xe6\x98"),
            "[ab]|\xff\xfe|[cd]|\xe6\x98");
  EXPECT_EQ(pieces("\\S+", "\xff"), "\xff");
}

TEST(Regex, MeasuresLetters) {
  const std::pair<std::string_view, size_t> cases[] = {
      {"", 0},
      {"a\u661f", 1},
      {std::string_view("\0", 1), 1},
      {"\u0080x", 2},
      {"\u0800x", 3},
      {"\ud7ffx", 3},
      {"\ue000x", 3},
      {"\U00010000x", 4},
      {"\U0010ffffx", 4},
      {"\x80", 0},              // starts with a continuation
      {"\xc1\xbf", 0},          // longer than needed
      {"\xe0\x9f\xbf", 0},      // longer than needed
      {"\xf0\x8f\xbf\xbf", 0},  // longer than needed
      {"\xed\xa0\x80", 0},      // surrogate
      {"\xf4\x90\x80\x80", 0},  // past U+10FFFF
      {"\xf5\x80\x80\x80", 0},  // past U+10FFFF
      {"\xe6\x98", 0},          // cut off
      {"\xe6\x98x", 0},         // cut off
      {"\xc3\xc3", 0},          // cut off
  };
  for (const auto& [text, size] : cases) EXPECT_EQ(letter_size(text), size) << testing::PrintToString(text);
}

TEST(Regex, RefusesWhatPcreReadsDifferently) {
  const std::pair<const char*, const char*> cases[] = {
      {"a\\w", "\\w"},
      {"\\bx", "\\b"},
      {"[\\h]", "\\h in a set"},
      {"[\\S]", "\\S in a set"},
      {"\\u0041", "\\u"},
      {"\\pL", "\\p"},
      {"\\x41", "\\x"},
      {"(a)\\1", "\\1"},
      {"[a[b]]", "[ in a set"},
      {"[a&&b]", "& in a set"},
      {"[]a]", "a set that starts with ]"},
      {"[^]a]", "a set that starts with ]"},
      {"a(?i)b", "(?i"},
      {"(?<n>a)", "(?<"},
      {"(*UTF)a", "(*"},
      {"a{,3}", "{,3}"},
      {"a{1,3}+b", "{1,3}+"},
      {"a{2}?", "{2}?"},
      {"a{x", "{x"},
      {"a{", "{"},
      {"a\\", "\\"},
  };
  for (const auto& [pattern, part] : cases) EXPECT_EQ(refusal(pattern), unsupported(pattern, part));
}

TEST(Regex, RefusesWrongPatterns) {
  EXPECT_EQ(refusal("a(b"), "pattern a(b is not valid: missing closing parenthesis");
  EXPECT_EQ(refusal("\\p{Nonsense}"), "pattern \\p{Nonsense} is not valid: unknown property after \\P or \\p");
}

TEST(Regex, GivesUpOnEndlessTries) {
  EXPECT_EQ(error_of([] { pieces("(?:a|a)+b", std::string(60, 'a') + "!b"); }),
            "pattern (?:a|a)+b fails on this text: match limit exceeded");
}

}  // namespace
}  // namespace startrail

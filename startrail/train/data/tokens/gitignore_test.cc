#include "startrail/train/data/tokens/gitignore.h"

#include <gtest/gtest.h>

namespace startrail {
namespace {

// "ignored", "kept" (a ! rule speaks of it) or "unknown". A path with a slash at its end is a folder.
std::string verdict(std::string_view rules, std::string path) {
  const bool is_folder = path.ends_with('/');
  if (is_folder) path.pop_back();
  const auto answer = Gitignore(rules).ignores(path, is_folder);
  return !answer ? "unknown" : *answer ? "ignored" : "kept";
}

TEST(Gitignore, FollowsGit) {
  const struct {
    const char *rules, *path, *expected;
  } cases[] = {
      {"*.log", "a.log", "ignored"},
      {"*.log", "deep/er/a.log", "ignored"},
      {"*.log", "a.logs", "unknown"},
      {"*.log", ".log", "ignored"},
      {"a*b*c", "aXbXbXc", "ignored"},
      {"a*b*c", "aXbXbX", "unknown"},
      {"?.txt", "a.txt", "ignored"},
      {"?.txt", "ab.txt", "unknown"},
      // A slash at the beginning or in the middle ties a rule to the folder.
      {"/top.txt", "top.txt", "ignored"},
      {"/top.txt", "sub/top.txt", "unknown"},
      {"doc/*.txt", "doc/a.txt", "ignored"},
      {"doc/*.txt", "sub/doc/a.txt", "unknown"},
      {"doc/*.txt", "doc/sub/a.txt", "unknown"},
      // One at the end speaks of folders only.
      {"build/", "build/", "ignored"},
      {"build/", "sub/build/", "ignored"},
      {"build/", "build", "unknown"},
      {"/", "a/", "unknown"},
      // Two stars.
      {"**/x", "x", "ignored"},
      {"**/x", "a/b/x", "ignored"},
      {"a/**", "a/b/c", "ignored"},
      {"a/**", "a/", "unknown"},
      {"a/**/z", "a/z", "ignored"},
      {"a/**/z", "a/b/c/z", "ignored"},
      {"a/**/z", "b/a/z", "unknown"},
      {"a/**/y/**/z", "a/y/b/y/c/z", "ignored"},
      {"a/**/y/**/z", "a/b/c/z", "unknown"},
      {"a/***/z", "a/b/c/z", "ignored"},
      {"a**z/b", "abcz/b", "ignored"},
      {"a**z/b", "a/z/b", "unknown"},
      {"**", "anything", "ignored"},
      // Sets.
      {"[Bb]in", "bin", "ignored"},
      {"[Bb]in", "din", "unknown"},
      {"x[a-c]", "xb", "ignored"},
      {"x[a-c]", "xd", "unknown"},
      {"x[!a-c]", "xd", "ignored"},
      {"x[^a-c]", "xb", "unknown"},
      {"x[]]", "x]", "ignored"},
      {"x[a-]", "x-", "ignored"},
      {"x[\\]]", "x]", "ignored"},
      {"x[[:digit:]_]", "x7", "ignored"},
      {"x[[:digit:]_]", "x_", "ignored"},
      {"x[[:digit:]_]", "xd", "unknown"},
      {"x[ab", "x[ab", "unknown"},
      // The last rule that fits decides.
      {"*.txt\n!keep.txt", "keep.txt", "kept"},
      {"*.txt\n!keep.txt", "lose.txt", "ignored"},
      {"!keep.txt\n*.txt", "keep.txt", "ignored"},
      // Comments, quoting, spaces, other line ends.
      {"#a", "#a", "unknown"},
      {"\\#a", "#a", "ignored"},
      {"\\!a", "!a", "ignored"},
      {"a\\*", "a*", "ignored"},
      {"a\\*", "ab", "unknown"},
      {"a\\", "a\\", "unknown"},
      {"a  ", "a", "ignored"},
      {"a\\ ", "a ", "ignored"},
      {"\n\n  \n", "a", "unknown"},
      {"a\r\nb\r\n", "b", "ignored"},
      {"\xef\xbb\xbf"
       "a",
       "a", "ignored"},
  };
  for (const auto& [rules, path, expected] : cases)
    EXPECT_EQ(verdict(rules, path), expected) << "rules '" << rules << "', path '" << path << "'";
}

TEST(Gitignore, ManyStarsTakeNoTime) {
  std::string rule;
  for (int i = 0; i < 30; ++i) rule += "**/*a*a*a/";
  EXPECT_EQ(verdict(rule + "b", std::string(4000, 'a')), "unknown");
  std::string path;
  for (int i = 0; i < 500; ++i) path += "aaaaaaaa/";
  EXPECT_EQ(verdict(rule + "b", path + "c"), "unknown");
}

}  // namespace
}  // namespace startrail

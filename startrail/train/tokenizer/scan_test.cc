#include "startrail/train/tokenizer/scan.h"

#include <gtest/gtest.h>

#include <random>

#include "startrail/train/tokenizer/nfc.h"
#include "startrail/train/tokenizer/split.h"

namespace startrail {
namespace {

std::vector<std::string> pieces(const Cuts& cuts, std::string_view text) {
  std::vector<std::string> found;
  cut(cuts, text, [&](std::string_view piece) { found.emplace_back(piece); });
  return found;
}

// Letters that the patterns treat specially, and any others.
std::string random_text(std::mt19937& random) {
  static const std::vector<std::string> special = {
      "'",      "s", "S",      "T",      "re",     "Ve",     "lL",     "m",      "d", "\u017f", " ", " ",
      "  ",     "a", "\n",     "\r",     "\t",     "1",      "23",     "4567",   ".", "->",     "_", "\u00e9",
      "\u0301", "'", "\u00a0", "\u3000", "\u2028", "\u661f", "\u0661", "\u180e", "'", "\u00b2", "'", "\U0001f680"};
  std::string text;
  for (size_t left = random() % 40; left > 0; --left) {
    if (random() % 8 > 0) {
      text += special[random() % special.size()];
      continue;
    }
    uint32_t point = random() % (random() % 2 == 0 ? 0x3000 : 0x110000);
    if (point >= 0xd800 && point < 0xe000) point = 'x';
    if (point >= 0x10000) text += static_cast<char>(0xf0 | point >> 18);
    if (point >= 0x800) text += static_cast<char>(point >= 0x10000 ? 0x80 | (point >> 12 & 0x3f) : 0xe0 | point >> 12);
    if (point >= 0x80) text += static_cast<char>(point >= 0x800 ? 0x80 | (point >> 6 & 0x3f) : 0xc0 | point >> 6);
    text += static_cast<char>(point >= 0x80 ? 0x80 | (point & 0x3f) : point);
    if (random() % 16 == 0) text += static_cast<char>(0x80 + random() % 0x80);  // not UTF-8
  }
  return text;
}

TEST(Scan, GivesThePiecesOfItsPattern) {
  std::mt19937 random(7);
  for (const std::string pattern : {kGpt2Pattern, kLlama3Pattern, kQwen2Pattern}) {
    ASSERT_TRUE(make_scan(pattern)) << pattern;
    const Cuts scanned{{Regex(pattern), make_scan(pattern)}}, matched{{Regex(pattern), std::nullopt}};
    EXPECT_TRUE(cuts_at_lines(scanned));
    EXPECT_FALSE(cuts_at_lines(matched));
    for (int i = 0; i < 20'000; ++i) {
      const std::string text = random_text(random);
      ASSERT_EQ(pieces(scanned, text), pieces(matched, text)) << pattern << "\n" << testing::PrintToString(text);
    }
  }
  EXPECT_FALSE(make_scan("a+"));
}

TEST(Scan, GivesTheSamePiecesOfTextsThatWereCut) {
  const std::vector<std::string> beside = {"x",      "9",      ".",      "'",         "\"",     " ",
                                           "\n",     "\u0301", "\u3000", "\u661f",    "\u0436", "\ud55c",
                                           "\u00e9", "\u00a0", "\u3002", "\U0001f680"};
  std::mt19937 random(8);
  int cuts_made = 0;
  for (const std::string pattern : {kGpt2Pattern, kLlama3Pattern, kQwen2Pattern}) {
    const Cuts cuts{{Regex(pattern), make_scan(pattern)}};
    for (int i = 0; i < 10'000; ++i) {
      const std::string above = random_text(random) + beside[random() % beside.size()] + "\n";
      const std::string below = beside[random() % beside.size()] + random_text(random), text = above + below;
      if (!may_cut_after(text, above.size() - 1)) continue;
      ++cuts_made;
      std::vector<std::string> apart = pieces(cuts, above);
      for (std::string& piece : pieces(cuts, below)) apart.push_back(std::move(piece));
      ASSERT_EQ(apart, pieces(cuts, text)) << pattern << "\n" << testing::PrintToString(text);
      std::string room[3];
      ASSERT_EQ(cat(to_nfc(above, room[0]), to_nfc(below, room[1])), to_nfc(text, room[2]));
    }
  }
  EXPECT_GT(cuts_made, 5'000);
  EXPECT_FALSE(may_cut_after("\na", 0));
  EXPECT_FALSE(may_cut_after("a\n", 1));
  EXPECT_FALSE(may_cut_after("a\n b", 1));
  EXPECT_FALSE(may_cut_after("a\n\u0301", 1));
  EXPECT_FALSE(may_cut_after("a \nb", 2));
  EXPECT_FALSE(may_cut_after("\u3000\nb", 3));
  EXPECT_TRUE(may_cut_after("a\nb", 1));
}

}  // namespace
}  // namespace startrail

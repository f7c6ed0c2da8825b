#include "startrail/train/tokenizer/nfc.h"

#include <gtest/gtest.h>
#include <utf8proc.h>

#include <cstdlib>
#include <random>
#include <vector>

namespace startrail {
namespace {

std::string nfc(std::string_view text) {
  std::string room;
  return std::string(to_nfc(text, room));
}

TEST(Nfc, ComposesAndOrdersMarks) {
  EXPECT_EQ(nfc(""), "");
  EXPECT_EQ(nfc("abc \u00e9"), "abc \u00e9");
  EXPECT_EQ(nfc("e\u0301"), "\u00e9");
  EXPECT_EQ(nfc("\u0301e\u0301x\u0301"), "\u0301\u00e9x\u0301");
  EXPECT_EQ(nfc("a\u0301\u0323b"), "\u1ea1\u0301b");           // the lower mark first
  EXPECT_EQ(nfc("\u212b\uf900\u0374"), "\u00c5\u8c48\u02b9");  // letters that are replaced
  EXPECT_EQ(nfc("\u1112\u1161\u11ab \uac00\u11a8"), "\ud55c \uac01");
  EXPECT_EQ(nfc("\u0958"), "\u0915\u093c");  // not composed again
  EXPECT_EQ(nfc("\u09c7\u09be"), "\u09cb");
}

// As Unicode 9 has it.
TEST(Nfc, LeavesNewerMarksWhereTheyAre) {
  EXPECT_EQ(nfc("x\u1dea\u1df8"), "x\u1dea\u1df8");
  EXPECT_EQ(nfc("x\u1df8\u0323"), "x\u1df8\u0323");
  EXPECT_EQ(nfc("\U00011935\U00011930"), "\U00011935\U00011930");
}

TEST(Nfc, KeepsBytesThatAreNotUtf8) {
  EXPECT_EQ(nfc("\xc3"), "\xc3");
  EXPECT_EQ(nfc("e\x80\u0301"), "e\x80\u0301");
  EXPECT_EQ(nfc("\xcc\xffx\u0301e\u0301\xcc"), "\xcc\xffx\u0301\u00e9\xcc");
}

TEST(Nfc, IsThatOfTheWholeText) {
  std::mt19937 random(3);
  const std::vector<uint32_t> near = {'a',    'e',    0x300,  0x301,  0x323,   0x327,   0x3b9,
                                      0x345,  0x5d0,  0x5bc,  0x915,  0x93c,   0x1100,  0x1161,
                                      0x11a8, 0xac00, 0x1025, 0x102e, 0x11131, 0x11127, 0x2f800};
  for (int i = 0; i < 50'000; ++i) {
    std::string text;
    for (size_t left = random() % 12; left > 0; --left) {
      uint32_t point = random() % 2 == 0 ? near[random() % near.size()] : random() % 0x7c0;
      if (point == 0 || (point >= 0xd800 && point < 0xe000)) point = ' ';
      utf8proc_uint8_t bytes[4];
      text.append(reinterpret_cast<char*>(bytes),
                  static_cast<size_t>(utf8proc_encode_char(static_cast<int32_t>(point), bytes)));
    }
    utf8proc_uint8_t* whole = utf8proc_NFC(reinterpret_cast<const utf8proc_uint8_t*>(text.c_str()));
    ASSERT_EQ(nfc(text), reinterpret_cast<char*>(whole)) << testing::PrintToString(text);
    std::free(whole);
  }
}

}  // namespace
}  // namespace startrail

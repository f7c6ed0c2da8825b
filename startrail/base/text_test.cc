#include "startrail/base/text.h"

#include <gtest/gtest.h>

#include "startrail/base/error.h"
#include "startrail/base/testing.h"

namespace startrail {
namespace {

using Strings = std::vector<std::string>;

TEST(Text, CatPrintsValuesOneAfterTheOther) { EXPECT_EQ(cat("rank ", 3, " of ", int64_t{16}, '.'), "rank 3 of 16."); }

TEST(Text, JoinPutsSeparatorsBetween) {
  EXPECT_EQ(join(std::vector<int>{1, 2, 4}), "1, 2, 4");
  EXPECT_EQ(join(std::vector<int>{7}, "+"), "7");
  EXPECT_EQ(join(std::vector<int>{}), "");
}

TEST(Text, SplitKeepsEmptyParts) {
  EXPECT_EQ(split("a,b,,c", ','), (Strings{"a", "b", "", "c"}));
  EXPECT_EQ(split(",", ','), (Strings{"", ""}));
  EXPECT_EQ(split("abc", ','), Strings{"abc"});
  EXPECT_EQ(split("", ','), Strings{});
}

TEST(Text, ParseIntReadsWholeNumbersOnly) {
  EXPECT_EQ(parse_int("0", "ranks"), 0);
  EXPECT_EQ(parse_int("-17", "ranks"), -17);
  EXPECT_EQ(parse_int("9223372036854775807", "ranks"), INT64_MAX);
  for (const char* text : {"", " 1", "1 ", "1.5", "0x10", "+1", "two", "9223372036854775808"})
    EXPECT_EQ(error_of([&] { parse_int(text, "ranks"); }), cat("ranks '", text, "' is not a whole number"));
}

TEST(Text, PluralCountsForPeople) {
  EXPECT_EQ(plural(1, "file"), "1 file");
  EXPECT_EQ(plural(0, "class", "es"), "0 classes");
  EXPECT_EQ(plural(1234567, "file"), "1,234,567 files");
  EXPECT_EQ(counted(999), "999");
}

TEST(Text, FixedRounds) {
  EXPECT_EQ(fixed(3.14159, 2), "3.14");
  EXPECT_EQ(fixed(2.0, 0), "2");
  EXPECT_EQ(fixed(-0.06, 1), "-0.1");
}

TEST(Text, HumanBytesHasThreeDigits) {
  EXPECT_EQ(human_bytes(0), "0 B");
  EXPECT_EQ(human_bytes(999), "999 B");
  EXPECT_EQ(human_bytes(1000), "1.00 kB");
  EXPECT_EQ(human_bytes(1536000), "1.54 MB");
  EXPECT_EQ(human_bytes(9.996e6), "10.0 MB");
  EXPECT_EQ(human_bytes(99.96e6), "100 MB");
  EXPECT_EQ(human_bytes(999.6e6), "1.00 GB");
  EXPECT_EQ(human_bytes(2.5e18), "2500 PB");
}

TEST(Text, TableAlignsColumns) {
  EXPECT_EQ(table({{"grid", "bytes"}, {"ring", "7"}, {"startrail:2", "1234567"}, {"short"}}),
            "  grid           bytes\n"
            "  ring               7\n"
            "  startrail:2  1234567\n"
            "  short\n");
  EXPECT_EQ(table({}), "");
}

TEST(Check, NamesThePlaceTheRuleAndTheValues) {
  EXPECT_NO_THROW(STARTRAIL_CHECK(1 + 1 == 2, "never said"));
  const int ranks = 3;
  try {
    STARTRAIL_CHECK(ranks == 4, "there are ", ranks);
    FAIL() << "nothing was thrown";
  } catch (const InternalError& error) {
    const std::string text = error.what();
    EXPECT_NE(text.find("text_test.cc:"), std::string::npos) << text;
    EXPECT_NE(text.find(": ranks == 4 does not hold: there are 3"), std::string::npos) << text;
  }
}

}  // namespace
}  // namespace startrail

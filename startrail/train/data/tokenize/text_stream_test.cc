#include "startrail/train/data/tokenize/text_stream.h"

#include <gtest/gtest.h>

#include "startrail/base/testing.h"
#include "startrail/train/data/tokenize/testing.h"

namespace startrail {
namespace {

std::string long_text() {
  std::string text;
  for (int i = 0; text.size() < 400'000; ++i) text += cat("line ", i * 7919 % 10007, "\n");
  return text;
}

std::string read_all(const std::string& path, int64_t skip = 0) {
  TextStream stream(path);
  stream.skip(skip);
  std::string text, block(10'000, '\0');
  while (const size_t got = stream.read(block.data(), block.size())) text.append(block, 0, got);
  return text;
}

TEST(TextStream, ReadsPlainAndPackedFiles) {
  const TempFolder folder;
  const std::string text = long_text();
  const std::string files[] = {folder.write("a.txt", text), folder.write("a.txt.gz", gzip(text)),
                               folder.write("a.txt.zst", zstd(text)),
                               folder.write("joined.gz", gzip(text.substr(0, 70'000)) + gzip(text.substr(70'000))),
                               folder.write("joined.zst", zstd(text.substr(0, 70'000)) + zstd(text.substr(70'000)))};
  for (const std::string& file : files) {
    EXPECT_EQ(read_all(file), text) << file;
    EXPECT_EQ(read_all(file, 123'456), text.substr(123'456)) << file;
  }
  for (const std::string& file :
       {folder.write("e.txt", ""), folder.write("e.gz", gzip("")), folder.write("e.zst", zstd(""))})
    EXPECT_EQ(read_all(file), "") << file;
}

TEST(TextStream, RefusesWhatIsCutShortOrDamaged) {
  const TempFolder folder;
  const std::string text = long_text();
  for (const auto& [name, packed] : {std::pair{"a.gz", gzip(text)}, std::pair{"a.zst", zstd(text)}}) {
    for (const size_t size : {size_t{0}, size_t{1}, size_t{5}, packed.size() / 3, packed.size() - 1}) {
      const std::string file = folder.write(name, packed.substr(0, size));
      const std::string error = error_of([&] { read_all(file); });
      EXPECT_TRUE(error.starts_with(cat(file, " is cut short after line "))) << error;
      EXPECT_TRUE(error.ends_with(cat(" of its text: it ends after ", size, " bytes in the middle of what is packed")));
      if (size == packed.size() / 3) continue;  // how much of it can be unpacked is for the packing to say
      EXPECT_EQ(error.find(" after line 0 ") == std::string::npos, size > 10) << error;
    }
    std::string damaged = packed;
    damaged[packed.size() / 2] ^= 0x55;
    damaged[packed.size() / 2 + 1] ^= 0x55;
    const std::string file = folder.write(name, damaged);
    EXPECT_NE(error_of([&] { read_all(file); }).find(cat(file, " is damaged after line ")), std::string::npos) << name;
    EXPECT_NE(error_of([&] {
                read_all(folder.write(name, "plain text, not packed"));
              }).find(" is damaged after line 0 of its text, near byte "),
              std::string::npos);
  }
}

}  // namespace
}  // namespace startrail

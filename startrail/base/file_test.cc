#include "startrail/base/file.h"

#include <gtest/gtest.h>

#include <cerrno>
#include <nlohmann/json.hpp>

#include "startrail/base/testing.h"

namespace startrail {
namespace {

namespace fs = std::filesystem;

TEST(File, IsReadAtAnyPlaceAndEndsWhereItEnds) {
  const TempFolder folder;
  const OpenFile file(folder.write("a", "0123456789"));
  EXPECT_EQ(file.state().bytes, 10);
  std::string part(4, '?');
  EXPECT_EQ(file.read(3, part.data(), 4), 4u);
  EXPECT_EQ(part, "3456");
  EXPECT_EQ(file.read(8, part.data(), 4), 2u);
  EXPECT_EQ(file.read(20, part.data(), 4), 0u);
}

TEST(File, IsWrittenAnewOrAsItIs) {
  const TempFolder folder;
  const std::string path = folder.write("a", "0123456789");
  WritableFile(path, WritableFile::Start::as_it_is).write("xy", 2, 3);
  const auto content = [&] {
    std::ifstream in(path, std::ios::binary);
    return std::string(std::istreambuf_iterator<char>(in), {});
  };
  EXPECT_EQ(content(), "012xy56789");
  {
    const WritableFile fresh(path, WritableFile::Start::empty);
    fresh.write("ab", 2, 0);
    fresh.resize(4);
    fresh.flush();
  }
  EXPECT_EQ(content(), std::string("ab\0\0", 4));
  write_text(path, "text");
  EXPECT_EQ(content(), "text");
  EXPECT_EQ(error_of([&] { WritableFile(folder.path("none"), WritableFile::Start::as_it_is); }),
            folder.path("none") + " cannot be opened: No such file or directory");
  EXPECT_EQ(error_of([&] { sync_folder(folder.path("none")); }),
            folder.path("none") + " cannot be opened: No such file or directory");
}

// A full disk is the same fault wherever it is met.
TEST(File, ErrorsAreTheMachinesOrTheUsers) {
  for (int code : {EIO, ENOSPC, EDQUOT, EMFILE, ENFILE, ENOMEM})
    EXPECT_THROW(throw_file_error("a", "cannot be written", code), ClusterError) << code;
  for (int code : {ENOENT, EACCES, EISDIR, ENOTDIR})
    EXPECT_THROW(throw_file_error("a", "cannot be opened", code), UserError) << code;
  if (!fs::exists("/dev/full")) GTEST_SKIP() << "no /dev/full";
  EXPECT_THROW(WritableFile("/dev/full", WritableFile::Start::as_it_is).write("x", 1, 0), ClusterError);
}

TEST(File, IsTriedBeforeItIsWritten) {
  const TempFolder folder;
  check_writable(folder.path("new"), "--out");
  EXPECT_FALSE(fs::exists(folder.path("new")));
  const std::string there = folder.write("there", "kept");
  check_writable(there, "--out");
  EXPECT_EQ(fs::file_size(there), 4u);
  const std::string inside = folder.path("no/such/file");
  EXPECT_EQ(error_of([&] { check_writable(inside, "--out"); }),
            cat("--out ", inside, " cannot be written: No such file or directory"));
}

TEST(File, ChecksumsOfAFileAreThoseOfItsBytes) {
  const TempFolder folder;
  std::string text(3 << 20, ' ');  // several pieces
  for (size_t i = 0; i < text.size(); ++i) text[i] = static_cast<char>(i * i >> 7);
  const std::string path = folder.write("a", text);
  const auto bytes = static_cast<int64_t>(text.size());
  EXPECT_EQ(checksum(path, 0, bytes), checksum(text.data(), text.size()));
  EXPECT_EQ(checksum(path, 7, bytes - 5), checksum(text.data() + 7, text.size() - 12));
  EXPECT_EQ(checksum(path, 5, 5), checksum("", 0));
  EXPECT_NE(checksum(path, 0, bytes - 1), checksum(path, 0, bytes));
  EXPECT_EQ(error_of([&] { checksum(path, 0, bytes + 1); }),
            cat(path, " is truncated: it has ", bytes, " bytes and should have ", bytes + 1));
}

TEST(File, OfJsonIsReadWhole) {
  const TempFolder folder;
  EXPECT_EQ(read_json(folder.write("a.json", "{\"b\": [1, 2]}"))["b"][1], 2);
  EXPECT_NE(error_of([&] { read_json(folder.write("a.json", "{\"b\": [1, 2")); }).find("is not whole JSON"),
            std::string::npos);
  EXPECT_NE(error_of([&] { read_json(folder.path()); }).find("cannot be opened as a file"), std::string::npos);
}

}  // namespace
}  // namespace startrail

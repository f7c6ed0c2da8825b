#include "startrail/train/data/tokens/files.h"

#include <gtest/gtest.h>

#include "startrail/base/testing.h"
#include "startrail/train/data/tokens/testing.h"

namespace startrail {
namespace {

std::vector<std::string> names_of(const DataFiles& found) {
  std::vector<std::string> names;
  for (const DataFile& file : found.files) names.push_back(file.name);
  return names;
}

TEST(DataFiles, WhatTrainingWritesIsNotData) {
  const TempFolder folder;
  for (const char* name :
       {"a.txt", "sub/b.txt", "run/config.toml", "run/metrics.jsonl", "run/log.txt", "step/training.json",
        "step/config.json", "model/model.safetensors", "model/config.json", "mine/log.txt", "other/config.toml"})
    folder.write(name, "text");
  const DataFiles found = find_data_files(folder.path(), folder.path("mine/"));
  EXPECT_EQ(names_of(found), (std::vector<std::string>{"a.txt", "other/config.toml", "sub/b.txt"}));
  EXPECT_EQ(found.left_out, "4 runs or models");
  EXPECT_EQ(find_data_files(folder.path(), folder.path("not-yet")).files.size(), 4u);
  EXPECT_EQ(find_data_files(folder.path("run")).files.size(), 3u);  // asked for by name
}

TEST(DataFiles, ANoteBesideTokensIsNotTheData) {
  const TempFolder folder;
  folder.write("README.md", "about");
  folder.write("train.bin", std::string(4, '\1'));
  EXPECT_EQ(find_data_files(folder.path()).left_out, "1 .bin");
  folder.write("train.bin", std::string(6000, '\1'));
  EXPECT_EQ(error_of([&] { find_data_files(folder.path()); }),
            cat("data folder ", folder.path(), " has 5 B of text and 6.00 kB in .bin files (train.bin): give a .bin ",
                "file itself, or name *.bin in a .gitignore file there to take the text"));
  folder.write(".gitignore", "*.bin\n");
  EXPECT_EQ(names_of(find_data_files(folder.path())), (std::vector<std::string>{"README.md"}));
}

// Else its journal and tokenizer would be learned as text.
TEST(DataFiles, AnUnfinishedFolderOfTokensIsNoData) {
  const TempFolder folder;
  for (const char* name : {kJournalFile, "tokens-00000.bin"}) {
    folder.write(cat(name, ".folder/", name), "{}");
    folder.write(cat(name, ".folder/tokenizer.json"), "{\"much\":\"text\"}");
    const std::string path = folder.path(cat(name, ".folder"));
    EXPECT_EQ(error_of([&] { find_data_files(path, ""); }),
              cat(path, " is of startrail tokenize (", name, "), but has no tokens.json, which comes last: give that ",
                  "command again, and it goes on"));
  }
  folder.write("mine/tokens-00000.bin", std::string(4, '\1'));  // someone else's, of the same name
  EXPECT_EQ(find_data_files(folder.path("mine")).token_bytes, 2);
}

TEST(DataFiles, ANulLateInAFileMakesItBinary) {
  const TempFolder folder;
  folder.write("a.txt", "text");
  std::string text(3 << 20, 'x');
  folder.write("b.txt", text);
  EXPECT_EQ(find_data_files(folder.path()).files.size(), 2u);
  text[text.size() - 7] = '\0';
  folder.write("b.txt", text);
  EXPECT_EQ(find_data_files(folder.path()).left_out, "1 binary");
}

TEST(DataFiles, GitignoreFilesOfTheRepositoryAboveHoldToo) {
  const TempFolder folder;
  folder.write(".gitignore", "*.above\n");  // outside of the repository
  folder.write("repo/.git/config", "");
  folder.write("repo/.gitignore", "*.log\n/src/deep/out\nout2/\n");
  folder.write("repo/src/.gitignore", "!keep.log\n/deep/tmp\n");
  for (const char* name : {"a.txt", "a.above", "x.log", "keep.log", "out/a", "out2/a", "tmp/a", "sub/out/a"})
    folder.write(cat("repo/src/deep/", name), "text");
  const DataFiles found = find_data_files(folder.path("repo/src/deep"));
  EXPECT_EQ(names_of(found), (std::vector<std::string>{"a.above", "a.txt", "keep.log", "sub/out/a"}));
  EXPECT_EQ(found.left_out, "4 ignored by .gitignore");
}

TEST(DataFiles, RefusesBrokenTokenFiles) {
  const TempFolder folder;
  const auto refused = [&](const std::string& content) {
    const std::string path = folder.write("a.bin", content), start = "token file " + path + " ";
    const std::string error = error_of([&] { find_data_files(path); });
    EXPECT_EQ(error_of([&] { find_data_files(folder.path()); }), error);  // as a shard too
    return error.starts_with(start) ? error.substr(start.size()) : error;
  };
  EXPECT_EQ(refused(""), "is empty: it must hold one token or more");
  EXPECT_EQ(refused("abc"), "has an odd size of 3 bytes: uint16 tokens take 2 each");
  EXPECT_EQ(refused(llmc_file(20240520, 1, 0, token_bytes({}))), "is empty: it must hold one token or more");
  EXPECT_EQ(refused(llmc_file(20240520, 1, 3, token_bytes({1, 2}))),
            "is truncated: it has 1028 bytes, its header's 3 tokens need 1030");
  EXPECT_EQ(refused(llmc_file(20240520, 1, 3, token_bytes({1, 2, 3, 4}))),
            "is too long: it has 1032 bytes, its header's 3 tokens need 1030");
  EXPECT_EQ(refused(llmc_file(20240520, 1, 3, token_bytes({})).substr(0, 100)),
            "is truncated: it has 100 bytes, its header alone takes 1024");
  EXPECT_EQ(refused(llmc_file(20240520, 2, 1, token_bytes({1}))),
            "has version 2 of the format: only version 1 is read");
  EXPECT_EQ(refused(llmc_file(20240801, 1, 1, token_bytes({1, 0}))),
            "has version 1 of the format: only version 7 is read");
  EXPECT_EQ(refused(llmc_file(20240801, 7, 2, token_bytes({1, 0}))),
            "is truncated: it has 1028 bytes, its header's 2 tokens need 1032");
}

}  // namespace
}  // namespace startrail

#include "startrail/train/data/tokens/files.h"

#include <gtest/gtest.h>

#include "startrail/base/testing.h"

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

}  // namespace
}  // namespace startrail

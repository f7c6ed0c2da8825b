#include "startrail/train/data/files.h"

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

// Which files `startrail tokenize` reads, in which order, and how: lines of JSON, or one document each.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace startrail {

struct TextFile {
  std::string path;
  bool lines = false;  // a document in each, as JSON; else the file is one
  int64_t bytes = 0, time_ns = 0;
};

struct TextFiles {
  std::vector<TextFile> files;
  int64_t left_out = 0;  // binary ones, in folders
};

// Files as they are given, and folders with all that is in them, by name. Left out of folders are hidden names, binary
// files, `out` and `leave_out`. UserError for what is not there or not text, and when there is nothing.
TextFiles find_texts(const std::vector<std::string>& paths, const std::filesystem::path& out,
                     const std::filesystem::path& leave_out = {});

}  // namespace startrail

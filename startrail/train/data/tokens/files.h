// Which files a data path means, and where in each the data is. Looks at names, sizes and beginnings only, so that a
// large folder or file is quick to open. Used by corpus.cc, which reads them.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "startrail/train/data/listing.h"

namespace startrail {

struct DataFile {
  std::string name;  // relative to the root
  int64_t offset;    // where the tokens begin, in bytes
  int64_t tokens;    // one or more
};

struct DataFiles {
  std::filesystem::path root;
  std::vector<DataFile> files;  // sorted by name; one or more
  bool is_folder = false;
  bool is_bytes = true;  // otherwise little-endian uint16 tokens
  std::string left_out;  // "3 binary, 17 ignored by .gitignore", a folder counted as one; "" for nothing
};

// A text file, a .bin token file, or a folder: of its text files or, when it has none, of its .bin files. Links to
// folders are not followed. Left out are the folder `leave_out`, what .gitignore files name (those above too, up to the
// repository's root), and folders that hold what training writes: runs, checkpoints, exported models. UserError for
// anything else, for text beside .bin files that are larger together, and for a token file that is empty or not whole.
DataFiles find_data_files(const std::string& path, const std::string& leave_out = "");
// The same, found once for all processes of a job.
DataFiles find_data_files(const std::string& path, const std::string& leave_out, const Listing& listing);

}  // namespace startrail

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
  int64_t token_bytes = 1;  // 1: text; otherwise little-endian numbers, 2: uint16, 4: uint32
  std::string left_out;     // "3 binary, 17 ignored by .gitignore", a folder counted as one; "" for nothing
  // What a tokens.json says of them; 0 and -1 where there is none.
  int64_t vocabulary = 0, end_token = -1;

  bool is_bytes() const { return token_bytes == 1; }
  bool is_described() const { return vocabulary > 0; }
};

// A text file, a .bin token file, a folder with a tokens.json (or one of its files), or another folder: of its text
// files or, when it has none, of its .bin files. A .bin file is uint16 tokens, or has llm.c's header, which says what
// they are; those of a folder must be alike. Links to folders are not followed. Left out are the folder `leave_out`,
// what .gitignore files name (those above too, up to the repository's root), and folders that hold what training
// writes: runs, checkpoints, exported models. UserError for anything else, for text beside .bin files that are larger
// together, and for a token file that is empty or not whole.
DataFiles find_data_files(const std::string& path, const std::string& leave_out = "");
// The same, found once for all processes of a job.
DataFiles find_data_files(const std::string& path, const std::string& leave_out, const Listing& listing);

}  // namespace startrail

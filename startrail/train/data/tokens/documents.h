// Which documents of token files are held out: each by a hash of its own tokens, so that it stays on its side whatever
// is added or taken away. Looks at every token once and remembers what it found. Used by corpus.cc.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "startrail/train/data/tokens/file_pool.h"
#include "startrail/train/data/tokens/ranges.h"

namespace startrail {

// Token files as one row: file i of the pool holds `tokens` tokens from byte `offset` on, which begin at `first` in the
// row.
struct DocumentFile {
  int64_t offset = 0, tokens = 0, first = 0;
};
struct DocumentRow {
  const FilePool& files;
  std::vector<DocumentFile> parts;
  int64_t token_bytes = 2;  // 2 or 4
  int64_t end_token = 0;    // a document ends after it, or with its file
};

struct HeldOut {
  Ranges ranges;
  int64_t documents = 0;  // in all
  int64_t held = 0;       // of them

  std::string pack() const;
  static HeldOut unpack(const std::string& bytes);
};

// Documents whose hash, as a number from 0 to 1, is below `share`. The hash is of the ids, so it does not depend on how
// wide they are written. A document of more than half of all tokens is never taken. At least one is, that of the lowest
// hash; and one is left, that of the highest. With fewer than two documents nothing is held out. UserError for a file
// that is gone or shorter.
HeldOut hold_out_documents(const DocumentRow& row, double share);

// The same, kept in a file in `cache` for the next time (a folder that is made; "": nowhere), where the files have the
// same names, sizes and times.
HeldOut hold_out_documents(const DocumentRow& row, double share, const std::filesystem::path& cache);

}  // namespace startrail

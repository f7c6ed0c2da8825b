// Writes tokens into the token files of a folder: under another name until a file is whole, then it is entered into the
// journal.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "startrail/base/file.h"
#include "startrail/train/data/tokenize/journal.h"

namespace startrail {

class ShardWriter {
 public:
  // `journal` has what is finished, and is kept up to date here and on disk. `inputs` is the fingerprint of the first n
  // files, n + 1 of them.
  ShardWriter(std::filesystem::path folder, Journal& journal, const std::vector<std::string>& inputs,
              int64_t token_bytes);
  // Removes a file that is not whole.
  ~ShardWriter();
  ShardWriter(const ShardWriter&) = delete;
  ShardWriter& operator=(const ShardWriter&) = delete;

  void add(const Batch& batch);

 private:
  void close(const Place& end);

  std::filesystem::path folder_;
  Journal& journal_;
  const std::vector<std::string>& inputs_;
  int64_t token_bytes_;
  Shard shard_;
  std::optional<WritableFile> file_;
};

// How many of the first files a place has touched.
int64_t touched(const Place& place);

}  // namespace startrail

// What `startrail tokenize` has finished in a folder, so that a second run goes on after a kill: for each token file
// where in the text it ends. Also keeps two runs out of one folder.
#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "startrail/train/data/tokenize/batch_reader.h"
#include "startrail/train/data/tokens/token_folder.h"

namespace startrail {

struct Shard {
  TokenFile file;
  Place end;
  int64_t text_bytes = 0, skipped = 0;
  std::string inputs;  // fingerprint of the files read up to its end
  bool last = false;   // the text ended
};

struct Journal {
  nlohmann::json settings;  // what the tokens depend on besides the text, by name
  std::vector<Shard> shards;
};

// None when the folder has none, or it is damaged, which means the same: nothing is finished.
Journal read_journal(const std::filesystem::path& folder);
// In one step: it is there whole, or as it was.
void write_journal(const std::filesystem::path& folder, const Journal& journal);

// Whether the name is of a file that belongs to the journal.
bool is_journal(const std::string& name);

// Held while a folder is written. UserError when another process holds it.
class FolderLock {
 public:
  explicit FolderLock(const std::filesystem::path& folder);
  ~FolderLock();
  FolderLock(const FolderLock&) = delete;
  FolderLock& operator=(const FolderLock&) = delete;

 private:
  int descriptor_;
};

}  // namespace startrail

// Cuts the text of many files into batches of documents, one after the other. Where a batch ends depends only on the
// text from its start on, so that a reader that starts at the end of one gives the same batches.
#pragma once

#include <atomic>
#include <exception>
#include <memory>
#include <string>
#include <vector>

#include "startrail/train/data/tokenize/text_files.h"
#include "startrail/train/data/tokenize/text_stream.h"

namespace startrail {

// A place between documents, or between lines of one.
struct Place {
  int64_t file = 0;
  int64_t offset = 0;  // bytes of its text, unpacked
  int64_t line = 0;    // lines before

  bool operator==(const Place&) const = default;
};

struct Batch {
  struct Item {
    size_t begin, end;  // of `text`
    int64_t file, line;
    bool ends;             // the document; lines of JSON always do
    std::string bad = {};  // why the document cannot be taken, if the reader knows
  };
  std::string text;
  std::vector<Item> items;
  Place end;
  bool closes_shard = false;
  std::exception_ptr error;  // met after these items

  // By who encodes it.
  std::vector<char> tokens;  // as they are written
  int64_t documents = 0, token_count = 0, text_bytes = 0;
  std::vector<std::string> bad;  // what is wrong with documents that are left out
  bool done = false;
};

struct BatchOptions {
  int64_t shard_bytes = 0;   // of text, after which a shard is closed
  bool at_lines = false;     // a document may be cut between lines
  bool skips_files = false;  // of text that is not UTF-8, which must then be known before
};

class BatchReader {
 public:
  BatchReader(const std::vector<TextFile>& files, const Place& from, const BatchOptions& options);

  // False when there are no more. Errors are in the batch.
  bool next(Batch& batch);

  // Bytes of all files up to here, as they lie on disk.
  int64_t consumed() const { return consumed_; }

 private:
  void open_file();
  bool add_part(Batch& batch);
  bool read_more(std::string& text);
  size_t find_cut(const std::string& text, size_t begin, size_t from) const;
  void add_lines(Batch& batch, size_t begin);

  const std::vector<TextFile>& files_;
  BatchOptions options_;
  Place place_;
  std::unique_ptr<TextStream> stream_;  // none before the file at place_ is opened
  std::string bad_;                     // why the file at place_ cannot be taken
  std::string ahead_;                   // read, but after place_
  int64_t shard_bytes_ = 0;             // since the last shard was closed
  int64_t consumed_before_ = 0;         // of the files before
  std::atomic<int64_t> consumed_ = 0;   // read by who shows progress
};

}  // namespace startrail

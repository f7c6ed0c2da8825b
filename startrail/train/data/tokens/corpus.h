// Training data as one long row of tokens that stays on disk: text files and folders as bytes, uint16 token files as
// nanoGPT and llm.c write them. Files are read in place, never loaded, so a 100 GB file costs no more memory than a
// small one. The source of examples (source.h) reads from this; nothing here knows of ranks.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "startrail/train/data/listing.h"

namespace startrail {

struct CorpusOptions {
  std::string path;             // a text file, a folder of them, a .bin token file, or a folder of .bin files
  std::string validation_path;  // the same for validation; "" holds out a share of `path`
  double validation = 0.05;     // share held out of `path`: whole files of a folder, the tail of a single file
  int64_t vocabulary = 256;     // tokens must be below it
  int64_t end_token = -1;       // what ends a document in token files, -1: nothing does; bytes always use 0
  std::string leave_out = {};   // a folder below `path` that is no data: the run's own
  Listing listing = {};         // how the files are found
};

// A row of tokens. Cheap to copy; safe to read from many threads at once.
class Corpus {
 public:
  struct State;
  explicit Corpus(std::shared_ptr<const State> state) : state_(std::move(state)) {}

  int64_t tokens() const;
  bool is_bytes() const;
  int64_t end_token() const;        // -1: documents are not marked
  std::string describe() const;     // "312 files, 1.42 MB (3 binary, 17 ignored by .gitignore left out)"
  std::string fingerprint() const;  // changes when the data does

  // Tokens first, first + stride, ... (count of them) into `out`. UserError, naming file and place, for a token beyond
  // the vocabulary, a NUL in a text or a file that shrank or is gone; InternalError outside of [0, tokens()).
  void read(int64_t first, int64_t count, int64_t stride, int64_t* out) const;

 private:
  std::shared_ptr<const State> state_;
};

struct Corpora {
  Corpus training, validation;  // validation has no tokens when nothing is held out
};

// Of both, training first. Changes when either does; kept in checkpoints.
std::string fingerprint(const Corpora& data);

// Every text file of a folder is followed by one end token; files that are binary, empty or ignored by .gitignore are
// left out, and folders that training wrote (run_files.h). UserError for a path that is not there, holds nothing to
// read or is truncated, and for options out of range.
Corpora open_data(const CorpusOptions& options);

}  // namespace startrail

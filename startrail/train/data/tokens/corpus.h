// Training data as one long row of tokens that stays on disk: text files and folders as bytes, folders of tokens as
// `startrail tokenize` makes them, .bin files as nanoGPT and llm.c write them. Files are read in place, never loaded,
// so a 100 GB file costs no more memory than a small one. The source of examples (source.h) reads from this; nothing
// here knows of ranks.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <utility>

#include "startrail/train/data/listing.h"

namespace startrail {

struct CorpusOptions {
  std::string path;             // what find_data_files takes
  std::string validation_path;  // the same for validation; "" holds out a share of `path`
  double validation = 0.05;     // share held out of `path`, as open_data says
  int64_t vocabulary = 256;     // the model's: tokens must be below it
  int64_t end_token = -1;       // ends a document in token files; -1: tokens.json says it, or nothing does; bytes use 0
  std::string leave_out = {};   // a folder below `path` that is no data: the run's own
  Listing listing = {};         // how the files are found
  bool sets_vocabulary = false;  // text and a tokens.json say which vocabulary a new model has
};

// A row of tokens. Cheap to copy; safe to read from many threads at once.
class Corpus {
 public:
  struct State;
  explicit Corpus(std::shared_ptr<const State> state) : state_(std::move(state)) {}

  int64_t tokens() const;
  bool is_bytes() const;
  int64_t end_token() const;   // -1: documents are not marked
  int64_t vocabulary() const;  // the model's, or that of a new one
  // The folder of a tokens.json, in which its tokenizer lies too; "" for other data.
  std::filesystem::path folder() const;
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
  std::string split = {};       // how it was: "files", "documents" or "tail"; "" when it was not
  std::string summary = {};     // for people: all of it, and what is held out
};

// Of both, training first, and how they were split. Changes when either does; kept in checkpoints.
std::string fingerprint(const Corpora& data);

// Every text file of a folder is followed by one end token; files that are binary, empty or ignored by .gitignore are
// left out, and folders that training wrote (run_files.h).
// Held out are whole files of a folder of texts, by a hash of their names, or whole documents of token files, by a hash
// of their tokens (documents.h): each stays on its side whatever else is added. Where there are no two of them to
// choose from, the tail.
// UserError for a path that is not there, holds nothing to read or is truncated, for options out of range or other
// than tokens.json says, and for tokens that the model's vocabulary cannot hold.
Corpora open_data(const CorpusOptions& options);

}  // namespace startrail

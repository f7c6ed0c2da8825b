// Text to a folder of token files (data/tokens/token_folder.h), on all cores: `startrail tokenize`, and `startrail
// train --tokenizer`. The tokens are those of Hugging Face's tokenizers; the bytes are the same on any number of
// threads and after any kill.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "startrail/train/data/tokens/token_folder.h"

namespace startrail {

struct TokenizeOptions {
  std::vector<std::string> paths;        // files and folders, as find_texts() takes them
  std::filesystem::path tokenizer;       // a tokenizer.json, or a folder that holds one
  std::filesystem::path out;             // the folder, made where it is not there
  std::filesystem::path leave_out = {};  // of folders, besides `out`
  std::string text_field = "text";       // of lines of JSON
  std::string end_token = {};            // as find_end_token() takes it
  bool skip = false;                     // documents that cannot be taken are left out; else they are an error
  bool replace = false;                  // finished tokens of other text or settings may be replaced
  int threads = 0;                       // 0: as many as cores
  int64_t shard_bytes = 256'000'000;     // of text for each token file
  // What to do where finished tokens may not be replaced, as the error says it.
  std::string otherwise = "give another folder, or replace them with startrail tokenize --replace";
};

struct TokenizeProgress {
  int64_t done_bytes = 0, bytes = 0;  // of the files on disk
  int64_t tokens = 0, documents = 0;
};

// Called from a thread of its own, one at a time.
struct TokenizeObserver {
  std::function<void(const TokenizeProgress&)> progress = {};  // several times a second
  std::function<void(const std::string&)> skipped = {};        // why a document is left out, with its file and line
};

struct TokenizeResult {
  TokenFolder folder;
  int64_t files = 0, left_out = 0;  // read; and binary ones in folders
  int64_t bytes = 0;                // of the files on disk
  int64_t documents = 0, tokens = 0, text_bytes = 0, skipped = 0;
  int64_t kept_tokens = 0;  // of an earlier run
  bool was_done = false;    // by an earlier run, all of it
};

// UserError for text, settings and tokenizers that cannot be taken, with the file and the line; and when `out` holds
// something else, or is being written. ClusterError when the disk is full. Token files that are finished stay, for the
// next run; nothing is half-written under its final name, and tokens.json comes last.
TokenizeResult tokenize(const TokenizeOptions& options, const TokenizeObserver& observer = {});

}  // namespace startrail

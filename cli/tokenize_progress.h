// What a terminal shows while text is tokenized, for `tokenize` and `train --tokenizer`.
#pragma once

#include <chrono>
#include <string>

#include "cli/command.h"
#include "startrail/train/data/tokenize/tokenize.h"

namespace startrail::cli {

class TokenizeDisplay {
 public:
  // Shows progress, and the first documents that are left out. Valid as long as this lives.
  TokenizeObserver observer();

 private:
  void show(const TokenizeProgress& now);
  void show_skipped(const std::string& why);

  Progress progress_{"reading the tokenizer"};
  std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
  TokenizeProgress first_;  // where this run started
  bool started_ = false;
  int skipped_ = 0;
};

}  // namespace startrail::cli

// Turns the documents of a batch into tokens, as they are written. Each thread has its own.
#pragma once

#include <string>
#include <vector>

#include "startrail/train/data/tokenize/batch_reader.h"
#include "startrail/train/tokenizer/piece_memo.h"
#include "startrail/train/tokenizer/tokenizer.h"

namespace startrail {

class BatchEncoder {
 public:
  struct Options {
    std::string text_field;
    uint32_t end_token = 0;
    int64_t token_bytes = 0;  // 2 or 4
  };
  BatchEncoder(const Tokenizer& tokenizer, const std::vector<TextFile>& files, Options options);

  // Fills batch.tokens and what is counted with them. A document that cannot be taken is in batch.bad instead.
  void encode(Batch& batch);

 private:
  const Tokenizer& tokenizer_;
  const std::vector<TextFile>& files_;
  Options options_;
  PieceMemo memo_;
  std::vector<uint32_t> tokens_;
};

}  // namespace startrail

// Examples cut from a row of tokens, by number, of which every rank gets its own tokens.
#pragma once

#include <optional>
#include <string>

#include "startrail/train/data/source.h"
#include "startrail/train/data/tokens/corpus.h"

namespace startrail {

struct TokenSourceOptions {
  int64_t tokens = 4096;           // of a sequence
  bool documents = false;          // attention and targets stay within a document
  uint64_t seed = 1;               // of the order
  int64_t validation_windows = 0;  // at most so many, evenly spaced; 0: all
};

// Sequences cut from a row of tokens: each epoch covers the row once, in windows that start at another offset and come
// in another order.
class TokenSource : public Source {
 public:
  // UserError when the data is shorter than one sequence.
  TokenSource(Corpora data, const TokenSourceOptions& options);

  Example training(int64_t index, Order layout, Group& group) const override;
  int64_t validation_count() const override;
  std::optional<Example> validation(int64_t index, Order layout, Group& group) const override;
  int64_t epoch() const override;
  std::string fingerprint() const override { return startrail::fingerprint(data_); }
  std::string describe() const override;
  const Corpora& data() const { return data_; }

 private:
  Example window(const Corpus& corpus, int64_t first, int64_t tokens, Order layout, Group& group) const;

  Corpora data_;
  TokenSourceOptions options_;
};

}  // namespace startrail

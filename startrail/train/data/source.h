// Where training examples come from. A source gives each rank only its own part of an example, by number, so that a run
// can be resumed at any of them on any number of ranks.
#pragma once

#include <optional>

#include "startrail/train/data/tokens/corpus.h"
#include "startrail/train/model/model.h"

namespace startrail {

class Source {
 public:
  virtual ~Source() = default;
  // Example `index` of the run (they never end: epoch follows epoch in another order), as the ranks of `group` share it
  // in this order. All ranks of the group call it.
  virtual Example training(int64_t index, Order layout, Group& group) const = 0;
  virtual int64_t validation_count() const = 0;
  // Nothing when none of the held-out data can be read.
  virtual std::optional<Example> validation(int64_t index, Order layout, Group& group) const = 0;
  // Training examples in an epoch.
  virtual int64_t epoch() const = 0;
  // Changes when the data does.
  virtual std::string fingerprint() const = 0;
  // For people: what it is and how much.
  virtual std::string describe() const = 0;
  // What was wrong with each picture, file or folder that was left out.
  virtual std::vector<std::string> skipped() const { return {}; }
};

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

// Parts of a row of tokens: which are held out, and where a token of the others, or of those, lies in the row. 16 bytes
// for each part, so that millions of documents can be held out of a large row. Used by corpus.cc.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace startrail {

class Ranges {
 public:
  // Tokens [begin, end), behind all that were added before.
  void add(int64_t begin, int64_t end);

  int64_t tokens() const { return tokens_; }  // inside
  size_t size() const { return parts_.size(); }

  // Consecutive tokens of the row.
  struct Run {
    int64_t first, count;
  };
  // From token `position` of those inside, or of those outside in a row of `row` tokens, to the end of its part.
  Run inside(int64_t position) const;
  Run outside(int64_t position, int64_t row) const;

  // As bytes and back: a few for each part. InternalError for other bytes.
  std::string pack() const;
  static Ranges unpack(const std::string& bytes);

 private:
  struct Part {
    int64_t begin;
    int64_t before;  // tokens inside the parts before it
  };
  std::vector<Part> parts_;  // none touches the next
  int64_t tokens_ = 0;
};

}  // namespace startrail

// The chunks of a sequence as a table: which tokens each one holds. Plans are priced, checked and run with it and never
// ask where it came from: a Layout is one way to make it, a list of pieces another.
#pragma once

#include <cstdint>
#include <vector>

#include "startrail/layout/layout.h"

namespace startrail {

class Chunks {
 public:
  Chunks() = default;
  // One after the other, as they are: a token may be in none or, to no good, in several.
  explicit Chunks(const std::vector<Pieces>& pieces);

  int count() const { return static_cast<int>(tokens_.size()); }
  int64_t total_tokens() const { return total_; }
  int64_t longest() const;
  int64_t tokens(int chunk) const { return tokens_.at(chunk); }
  // Of several chunks, one after the other, as a block holds them.
  int64_t tokens(const std::vector<int>& chunks) const;
  Pieces pieces(const std::vector<int>& chunks) const;

 private:
  friend Chunks make_chunks(const Layout& layout);
  void add(const Pieces& pieces);

  Pieces pieces_;          // of all chunks
  std::vector<int> ends_;  // of each chunk, in pieces_
  std::vector<int64_t> tokens_;
  int64_t total_ = 0;
};

Chunks make_chunks(const Layout& layout);

// Chunks that are all as long as the longest, for questions that only lengths matter to.
Chunks evened(const Chunks& chunks);

}  // namespace startrail

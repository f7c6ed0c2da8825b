#include "startrail/layout/chunks.h"

#include <algorithm>

namespace startrail {

Chunks::Chunks(const std::vector<Pieces>& pieces) {
  for (const Pieces& chunk : pieces) add(chunk);
}

void Chunks::add(const Pieces& pieces) {
  int64_t tokens = 0;
  for (const Piece& piece : pieces) tokens += piece.count;
  pieces_.insert(pieces_.end(), pieces.begin(), pieces.end());
  ends_.push_back(static_cast<int>(pieces_.size()));
  tokens_.push_back(tokens);
  total_ += tokens;
}

int64_t Chunks::longest() const { return tokens_.empty() ? 0 : *std::max_element(tokens_.begin(), tokens_.end()); }

int64_t Chunks::tokens(const std::vector<int>& chunks) const {
  int64_t sum = 0;
  for (int chunk : chunks) sum += tokens(chunk);
  return sum;
}

Pieces Chunks::pieces(const std::vector<int>& chunks) const {
  Pieces joined;
  for (int chunk : chunks)
    for (int i = chunk == 0 ? 0 : ends_.at(chunk - 1); i < ends_.at(chunk); ++i) append_piece(joined, pieces_[i]);
  return joined;
}

Chunks make_chunks(const Layout& layout) {
  Chunks chunks;
  for (int chunk = 0; chunk < layout.chunks; ++chunk) chunks.add(chunk_pieces(layout, chunk));
  return chunks;
}

Chunks evened(const Chunks& chunks) {
  return make_chunks({Order::contiguous, chunks.longest() * chunks.count(), chunks.count()});
}

}  // namespace startrail

// Who holds which tokens: the sequence cut into one chunk per rank, each chunk a few pieces of evenly spaced tokens.
// Used by chunks.h to make the table that plans are carried out with, and by whoever places tokens. Chunks may differ
// in length and may be empty; nothing is padded.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace startrail {

// Tokens first, first + stride, ... (count of them).
struct Piece {
  int64_t first = 0;
  int64_t count = 0;
  int64_t stride = 1;

  int64_t at(int64_t i) const { return first + i * stride; }
  int64_t last() const { return at(count - 1); }
  bool operator==(const Piece&) const = default;
};
using Pieces = std::vector<Piece>;

// The sub-piece of tokens [begin, begin + count) of `piece`.
inline Piece sub_piece(const Piece& piece, int64_t begin, int64_t count) {
  return {piece.at(begin), count, piece.stride};
}

enum class Order {
  contiguous,  // chunk r is the r-th part
  zigzag,      // chunk r holds pieces r and 2P-1-r of 2P, so that causal work is even
  striped,     // chunk r holds tokens r, r + P, r + 2P, ...
  listed,      // chunk r holds what a list says
};

// The pieces of each chunk.
using PieceLists = std::shared_ptr<const std::vector<Pieces>>;

struct Layout {
  Order order = Order::contiguous;
  int64_t tokens = 0;
  int chunks = 1;
  PieceLists listed = {};  // for Order::listed
};

// Chunks of these lengths, one after the other, as a list.
PieceLists list_lengths(const std::vector<int64_t>& lengths);

// Refuses zero tokens and zero chunks, and lists that do not hold every token once.
void check_layout(const Layout& layout);

// The pieces of a chunk in the order its rank holds them; none is empty, neighbours are joined.
Pieces chunk_pieces(const Layout& layout, int chunk);

// Of several chunks, one after the other, as a gathered block holds them.
Pieces chunk_pieces(const Layout& layout, const std::vector<int>& chunks);

int64_t chunk_tokens(const Layout& layout, int chunk);
int64_t chunk_tokens(const Layout& layout, const std::vector<int>& chunks);

// Adds a piece to those before it: joined with its neighbour, left out when it is empty.
void append_piece(Pieces& pieces, const Piece& piece);

std::string to_text(Order order);
Order parse_order(std::string_view text);  // of those that need no list; UserError names them

}  // namespace startrail

#include "startrail/layout/layout.h"

#include <algorithm>
#include <array>

#include "startrail/base/error.h"

namespace startrail {
namespace {

// Part `index` of `tokens` cut into `parts` nearly equal ones, the longer ones first.
Piece part(int64_t tokens, int64_t parts, int64_t index) {
  const int64_t base = tokens / parts, longer = tokens % parts;
  return {index * base + std::min(index, longer), base + (index < longer ? 1 : 0), 1};
}

// Piece `index` of the 2P of a zigzag layout. Pieces differ by at most one token. The longer ones are, from the middle
// to the front, those of the first half, then those of the second half from the back: so that no rank's causal work, by
// its queries or by its keys, is further from the mean than half a token against the whole sequence, 1.6% at N = 64P.
Piece zigzag_piece(int64_t tokens, int64_t chunks, int64_t index) {
  const int64_t parts = 2 * chunks, base = tokens / parts, longer = tokens % parts;
  const int64_t front = std::min(longer, chunks), back = longer - front;  // [chunks - front, chunks), the last `back`
  const int64_t before =
      std::clamp<int64_t>(index - (chunks - front), 0, front) + std::max<int64_t>(0, index - (parts - back));
  const bool is_longer = (index >= chunks - front && index < chunks) || index >= parts - back;
  return {index * base + before, base + (is_longer ? 1 : 0), 1};
}

// The chunk as one or two pieces, unless it is listed; either may be empty.
std::array<Piece, 2> halves(const Layout& layout, int chunk) {
  const int64_t chunks = layout.chunks;
  switch (layout.order) {
    case Order::contiguous:
      return {part(layout.tokens, chunks, chunk)};
    case Order::zigzag:
      return {zigzag_piece(layout.tokens, chunks, chunk), zigzag_piece(layout.tokens, chunks, 2 * chunks - 1 - chunk)};
    case Order::striped: {
      const int64_t count = (layout.tokens - chunk + chunks - 1) / chunks;
      return {Piece{chunk, count, count == 1 ? 1 : chunks}};
    }
    case Order::listed:
      break;
  }
  throw InternalError("unknown order");
}

}  // namespace

void append_piece(Pieces& pieces, const Piece& piece) {
  if (piece.count == 0) return;
  if (!pieces.empty() && pieces.back().stride == 1 && piece.stride == 1 && pieces.back().last() + 1 == piece.first)
    pieces.back().count += piece.count;
  else
    pieces.push_back(piece);
}

PieceLists list_lengths(const std::vector<int64_t>& lengths) {
  auto lists = std::make_shared<std::vector<Pieces>>();
  int64_t first = 0;
  for (int64_t length : lengths) {
    if (length < 0) throw UserError(cat("a rank cannot hold ", length, " tokens: give 0 or more for each"));
    lists->push_back({{first, length}});
    first += length;
  }
  return lists;
}

namespace {

void check_lists(const Layout& layout) {
  if (!layout.listed || static_cast<int>(layout.listed->size()) != layout.chunks)
    throw UserError(cat("layout listed has pieces for ", layout.listed ? layout.listed->size() : 0, " ranks, not for ",
                        layout.chunks, ": give the pieces of each rank"));
  std::vector<bool> held(static_cast<size_t>(layout.tokens));
  int64_t count = 0;
  for (size_t rank = 0; rank < layout.listed->size(); ++rank)
    for (const Piece& piece : (*layout.listed)[rank]) {
      if (piece.count < 0 || piece.stride < 1 ||
          (piece.count > 0 && (piece.first < 0 || piece.first >= layout.tokens || piece.count > layout.tokens ||
                               piece.last() >= layout.tokens)))
        throw UserError(cat("rank ", rank, "'s piece of ", piece.count, " tokens from ", piece.first, " on, every ",
                            piece.stride, ", is not of a sequence of ", layout.tokens));
      for (int64_t i = 0; i < piece.count; ++i) {
        if (held[static_cast<size_t>(piece.at(i))])
          throw UserError(cat("token ", piece.at(i), " is listed twice, the second time on rank ", rank,
                              ": each must be on one rank"));
        held[static_cast<size_t>(piece.at(i))] = true;
      }
      count += piece.count;
    }
  if (count != layout.tokens)
    throw UserError(cat("token ", std::ranges::find(held, false) - held.begin(), " of ", layout.tokens,
                        " is on no rank: each must be on one"));
}

}  // namespace

void check_layout(const Layout& layout) {
  if (layout.tokens < 1) throw UserError(cat(layout.tokens, " tokens cannot be split: give 1 or more"));
  if (layout.chunks < 1) throw UserError(cat(layout.chunks, " ranks cannot hold tokens: give 1 or more"));
  if (layout.order == Order::listed) check_lists(layout);
}

Pieces chunk_pieces(const Layout& layout, int chunk) {
  STARTRAIL_CHECK(chunk >= 0 && chunk < layout.chunks, "chunk ", chunk, " of ", layout.chunks);
  Pieces pieces;
  if (layout.order == Order::listed)
    for (const Piece& piece : layout.listed->at(static_cast<size_t>(chunk))) append_piece(pieces, piece);
  else
    for (const Piece& piece : halves(layout, chunk)) append_piece(pieces, piece);
  return pieces;
}

Pieces chunk_pieces(const Layout& layout, const std::vector<int>& chunks) {
  Pieces pieces;
  for (int chunk : chunks)
    for (const Piece& piece : chunk_pieces(layout, chunk)) append_piece(pieces, piece);
  return pieces;
}

int64_t chunk_tokens(const Layout& layout, int chunk) {
  int64_t tokens = 0;
  for (const Piece& piece : chunk_pieces(layout, chunk)) tokens += piece.count;
  return tokens;
}

int64_t chunk_tokens(const Layout& layout, const std::vector<int>& chunks) {
  int64_t tokens = 0;
  for (int chunk : chunks) tokens += chunk_tokens(layout, chunk);
  return tokens;
}

std::string to_text(Order order) {
  switch (order) {
    case Order::contiguous:
      return "contiguous";
    case Order::zigzag:
      return "zigzag";
    case Order::striped:
      return "striped";
    case Order::listed:
      return "listed";
  }
  throw InternalError("unknown order");
}

Order parse_order(std::string_view text) {
  for (Order order : {Order::contiguous, Order::zigzag, Order::striped})
    if (text == to_text(order)) return order;
  throw UserError(cat("layout '", text, "' is not known; valid layouts: contiguous, zigzag, striped"));
}

}  // namespace startrail

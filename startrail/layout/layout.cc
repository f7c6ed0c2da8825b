#include "startrail/layout/layout.h"

#include <algorithm>

#include "startrail/base/error.h"

namespace startrail {
namespace {

// Part `index` of `tokens` cut into `parts` nearly equal ones, the longer ones first.
Piece part(int64_t tokens, int64_t parts, int64_t index) {
  const int64_t base = tokens / parts, longer = tokens % parts;
  return {index * base + std::min(index, longer), base + (index < longer ? 1 : 0), 1};
}

void append(Pieces& pieces, const Piece& piece) {
  if (piece.count == 0) return;
  if (!pieces.empty() && pieces.back().stride == 1 && piece.stride == 1 && pieces.back().last() + 1 == piece.first)
    pieces.back().count += piece.count;
  else
    pieces.push_back(piece);
}

}  // namespace

void check_layout(const Layout& layout) {
  if (layout.tokens < 1) throw UserError(cat(layout.tokens, " tokens cannot be split: give 1 or more"));
  if (layout.chunks < 1) throw UserError(cat(layout.chunks, " ranks cannot hold tokens: give 1 or more"));
}

Pieces chunk_pieces(const Layout& layout, int chunk) {
  STARTRAIL_CHECK(chunk >= 0 && chunk < layout.chunks, "chunk ", chunk, " of ", layout.chunks);
  Pieces pieces;
  switch (layout.order) {
    case Order::contiguous:
      append(pieces, part(layout.tokens, layout.chunks, chunk));
      break;
    case Order::zigzag:
      append(pieces, part(layout.tokens, 2 * layout.chunks, chunk));
      append(pieces, part(layout.tokens, 2 * layout.chunks, 2 * layout.chunks - 1 - chunk));
      break;
    case Order::striped:
      append(pieces, {chunk, (layout.tokens - chunk + layout.chunks - 1) / layout.chunks, layout.chunks});
      if (!pieces.empty() && (pieces[0].count == 1 || layout.chunks == 1)) pieces[0].stride = 1;
      break;
  }
  return pieces;
}

Pieces chunk_pieces(const Layout& layout, const std::vector<int>& chunks) {
  Pieces pieces;
  for (int chunk : chunks)
    for (const Piece& piece : chunk_pieces(layout, chunk)) append(pieces, piece);
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
  }
  throw InternalError("unknown order");
}

Order parse_order(std::string_view text) {
  for (Order order : {Order::contiguous, Order::zigzag, Order::striped})
    if (text == to_text(order)) return order;
  throw UserError(cat("layout '", text, "' is not known; valid layouts: contiguous, zigzag, striped"));
}

}  // namespace startrail

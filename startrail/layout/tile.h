// Tiles: query pieces x key pieces, classed before any work is done, so that empty ones cost nothing and full ones need
// no mask. Used by run/kernel to cut a block's work into calls, and by anyone who asks how much work a rank has.
#pragma once

#include <cstdint>
#include <vector>

#include "startrail/layout/layout.h"
#include "startrail/layout/mask.h"

namespace startrail {

enum class TileClass { empty, partial, full };

// Exact: empty means that no pair is seen, full that every pair is.
TileClass classify(const Band& band, const Piece& queries, const Piece& keys);

// How many (query, key) pairs are seen.
int64_t count_pairs(const Band& band, const Pieces& queries, const Pieces& keys);

// The keys of `keys` that one query sees, as indices into the piece.
Span seen_indices(const Band& band, int64_t query, const Piece& keys);

// Work for one kernel call: rows [query_begin, + query_count) of the query block x [key_begin, + key_count) of the key
// block.
struct Tile {
  enum class Kind {
    full,      // every pair is seen
    diagonal,  // square; row i sees exactly the keys 0..i
    banded,    // row i sees seen_indices(band, queries.at(i), keys)
  };
  Kind kind = Kind::full;
  int64_t query_begin = 0, query_count = 0;
  int64_t key_begin = 0, key_count = 0;
  Piece queries, keys;  // the tokens, for diagonal and banded tiles only (full ones may span pieces)
};

// Tiles that cover every seen pair of a block exactly once. Neighbouring full tiles are joined into as few calls as a
// greedy sweep finds; partial ones are cut until little masked work is left in them, and no banded one has more than a
// million pairs.
std::vector<Tile> cut_tiles(const Band& band, const Pieces& queries, const Pieces& keys);

}  // namespace startrail

#include "startrail/layout/tile.h"

#include <algorithm>

#include "startrail/base/error.h"

namespace startrail {
namespace {

// A banded tile is split by rows until it is this short or mostly seen: shorter calls cost more than they save.
constexpr int64_t kShortestCut = 64;
constexpr double kMostlySeen = 0.7;
// A kernel may write a banded tile's mask out, so however long the pieces are, no tile has more pairs than this.
constexpr int64_t kLargestBanded = 1 << 20;

int64_t index_at_or_after(const Piece& piece, int64_t token) {
  if (token <= piece.first) return 0;
  return std::min(piece.count, (token - piece.first + piece.stride - 1) / piece.stride);
}

bool is_diagonal(const Band& band, const Piece& queries, const Piece& keys) {
  if (queries.count != keys.count) return false;
  for (int64_t i = 0; i < queries.count; ++i) {
    const Span seen = seen_indices(band, queries.at(i), keys);
    if (seen.begin != 0 || seen.end != i + 1) return false;
  }
  return true;
}

// Appends the tiles of one query piece x one key piece; `at_query` and `at_key` are their places in the blocks.
void cut_partial(const Band& band, Piece queries, Piece keys, int64_t at_query, int64_t at_key,
                 std::vector<Tile>& tiles) {
  // Drop rows that see nothing at either end, then keys that none of the rest sees.
  auto sees = [&](int64_t i) {
    const Span seen = seen_indices(band, queries.at(i), keys);
    return seen.end > seen.begin;
  };
  int64_t first = 0, last = queries.count;
  while (first < last && !sees(first)) ++first;
  while (last > first && !sees(last - 1)) --last;
  if (first == last) return;
  queries = sub_piece(queries, first, last - first);
  at_query += first;
  const int64_t begin = seen_indices(band, queries.first, keys).begin;
  const int64_t end = seen_indices(band, queries.last(), keys).end;
  keys = sub_piece(keys, begin, end - begin);
  at_key += begin;

  Tile tile{Tile::Kind::banded, at_query, queries.count, at_key, keys.count, queries, keys};
  const int64_t pairs = count_pairs(band, {queries}, {keys}), area = queries.count * keys.count;
  const bool sparse = queries.count > kShortestCut && pairs < kMostlySeen * area;
  if (pairs == area) {
    tile.kind = Tile::Kind::full;
  } else if (is_diagonal(band, queries, keys)) {
    tile.kind = Tile::Kind::diagonal;
  } else if (sparse || area > kLargestBanded) {
    const Span common{seen_indices(band, queries.last(), keys).begin, seen_indices(band, queries.first, keys).end};
    if (sparse || common.begin >= common.end) {
      for (const auto& [from, to] : {Span{0, queries.count / 2}, Span{queries.count / 2, queries.count}})
        cut_partial(band, sub_piece(queries, from, to - from), keys, at_query + from, at_key, tiles);
    } else {  // the keys that every row sees need no mask
      for (const auto& [from, to] : {Span{0, common.begin}, common, Span{common.end, keys.count}})
        cut_partial(band, queries, sub_piece(keys, from, to - from), at_query, at_key + from, tiles);
    }
    return;
  }
  tiles.push_back(tile);
}

std::vector<int64_t> offsets_of(const Pieces& pieces) {
  std::vector<int64_t> offsets{0};
  for (const Piece& piece : pieces) offsets.push_back(offsets.back() + piece.count);
  return offsets;
}

}  // namespace

Span seen_indices(const Band& band, int64_t query, const Piece& keys) {
  const Span span = band.keys_of(query);
  const int64_t begin = index_at_or_after(keys, span.begin);
  return {begin, std::max(begin, index_at_or_after(keys, span.end))};
}

TileClass classify(const Band& band, const Piece& queries, const Piece& keys) {
  if (queries.count == 0 || keys.count == 0) return TileClass::empty;
  // Both bounds never fall, so the tightest are the last row's begin and the first row's end.
  if (band.keys_of(queries.last()).begin <= keys.first && band.keys_of(queries.first).end > keys.last())
    return TileClass::full;
  for (int64_t i = 0; i < queries.count; ++i) {
    const Span seen = seen_indices(band, queries.at(i), keys);
    if (seen.end > seen.begin) return TileClass::partial;
    if (seen.begin == keys.count) break;  // this row starts behind the last key, and so does every later one
  }
  return TileClass::empty;
}

int64_t count_pairs(const Band& band, const Pieces& queries, const Pieces& keys) {
  int64_t pairs = 0;
  for (const Piece& query_piece : queries)
    for (const Piece& key_piece : keys) {
      const TileClass tile = classify(band, query_piece, key_piece);
      if (tile == TileClass::full) pairs += query_piece.count * key_piece.count;
      if (tile != TileClass::partial) continue;
      for (int64_t i = 0; i < query_piece.count; ++i) {
        const Span seen = seen_indices(band, query_piece.at(i), key_piece);
        pairs += seen.end - seen.begin;
      }
    }
  return pairs;
}

std::vector<Tile> cut_tiles(const Band& band, const Pieces& queries, const Pieces& keys) {
  const std::vector<int64_t> query_at = offsets_of(queries), key_at = offsets_of(keys);
  std::vector<Tile> tiles, partial;
  std::vector<size_t> open;  // full tiles that end at the current row of pieces and can still grow down
  for (size_t i = 0; i < queries.size(); ++i) {
    std::vector<size_t> now;
    for (size_t j = 0; j < keys.size();) {
      const TileClass tile = classify(band, queries[i], keys[j]);
      if (tile == TileClass::partial) cut_partial(band, queries[i], keys[j], query_at[i], key_at[j], partial);
      if (tile != TileClass::full) {
        ++j;
        continue;
      }
      size_t end = j + 1;
      while (end < keys.size() && classify(band, queries[i], keys[end]) == TileClass::full) ++end;
      const int64_t key_begin = key_at[j], key_count = key_at[end] - key_at[j];
      const auto above = std::find_if(open.begin(), open.end(), [&](size_t t) {
        return tiles[t].key_begin == key_begin && tiles[t].key_count == key_count;
      });
      if (above != open.end()) {
        tiles[*above].query_count += queries[i].count;
        now.push_back(*above);
      } else {
        tiles.push_back({Tile::Kind::full, query_at[i], queries[i].count, key_begin, key_count, {}, {}});
        now.push_back(tiles.size() - 1);
      }
      j = end;
    }
    open = std::move(now);
  }
  tiles.insert(tiles.end(), partial.begin(), partial.end());
  return tiles;
}

}  // namespace startrail

#include "startrail/layout/tile.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "startrail/base/text.h"

namespace startrail {
namespace {

struct Case {
  Mask mask;
  Layout layout;
};

std::string name(const Case& c) {
  return cat(to_text(c.mask), "; ", to_text(c.layout.order), ", ", c.layout.tokens, " tokens, ", c.layout.chunks,
             " chunks");
}

std::vector<Mask> some_masks(int64_t tokens) {
  const int64_t third = tokens / 3;
  return {{},
          {.causal = true},
          {.window = 3},
          {.causal = true, .window = third},
          {.documents = {third, 1, tokens - third - 1}},
          {.causal = true, .documents = {1, third, tokens - third - 5}, .padding = 4},
          {.causal = true, .window = 5, .documents = {third, tokens - third}},
          {.causal = true, .prefix = third},
          {.padding = third}};
}

std::vector<Case> every_case(const std::vector<int64_t>& lengths, const std::vector<int>& chunk_counts) {
  std::vector<Case> cases;
  for (int64_t tokens : lengths)
    for (int chunks : chunk_counts)
      for (Order order : {Order::contiguous, Order::zigzag, Order::striped})
        for (const Mask& mask : some_masks(tokens)) cases.push_back({mask, {order, tokens, chunks}});
  return cases;
}

Band band_of(const Case& c) { return Band(c.mask, c.layout.tokens, c.layout.tokens); }

std::vector<int64_t> tokens_of(const Pieces& pieces) {
  std::vector<int64_t> tokens;
  for (const Piece& piece : pieces)
    for (int64_t i = 0; i < piece.count; ++i) tokens.push_back(piece.at(i));
  return tokens;
}

// The naive count that everything here is compared to.
int64_t seen_pairs(const Band& band, const Pieces& queries, const Pieces& keys) {
  const std::vector<int64_t> key_tokens = tokens_of(keys);
  int64_t pairs = 0;
  for (int64_t q : tokens_of(queries)) {
    const Span span = band.keys_of(q);
    for (int64_t k : key_tokens) pairs += span.begin <= k && k < span.end;
  }
  return pairs;
}

int64_t seen_in(const Tile& tile, const Band& band) {
  if (tile.kind == Tile::Kind::full) return tile.query_count * tile.key_count;
  return count_pairs(band, {tile.queries}, {tile.keys});
}

// How often each pair of the block is in what the tiles say is seen.
std::vector<char> cover(const std::vector<Tile>& tiles, const Band& band, int64_t rows, int64_t columns) {
  std::vector<char> hits(rows * columns);
  for (const Tile& tile : tiles)
    for (int64_t i = 0; i < tile.query_count; ++i) {
      Span seen{0, tile.key_count};
      if (tile.kind == Tile::Kind::diagonal) seen.end = i + 1;
      if (tile.kind == Tile::Kind::banded) seen = seen_indices(band, tile.queries.at(i), tile.keys);
      for (int64_t j = seen.begin; j < seen.end; ++j) ++hits.at((tile.query_begin + i) * columns + tile.key_begin + j);
    }
  return hits;
}

void expect_exact_cover(const Case& c, const std::vector<int>& query_chunks, const std::vector<int>& key_chunks) {
  const Band band = band_of(c);
  const Pieces queries = chunk_pieces(c.layout, query_chunks), keys = chunk_pieces(c.layout, key_chunks);
  const std::vector<int64_t> rows = tokens_of(queries), columns = tokens_of(keys);
  const std::vector<Tile> tiles = cut_tiles(band, queries, keys);
  std::vector<char> expected;
  for (int64_t q : rows) {
    const Span span = band.keys_of(q);
    for (int64_t k : columns) expected.push_back(span.begin <= k && k < span.end);
  }
  ASSERT_TRUE(cover(tiles, band, rows.size(), columns.size()) == expected) << name(c);
  for (const Tile& tile : tiles) {
    ASSERT_GT(tile.query_count * tile.key_count, 0) << name(c);
    if (tile.kind == Tile::Kind::full) continue;
    ASSERT_EQ(tile.queries.count, tile.query_count) << name(c);
    ASSERT_EQ(tile.keys.count, tile.key_count) << name(c);
    for (int64_t i = 0; i < tile.query_count; ++i) ASSERT_EQ(tile.queries.at(i), rows[tile.query_begin + i]);
    for (int64_t j = 0; j < tile.key_count; ++j) ASSERT_EQ(tile.keys.at(j), columns[tile.key_begin + j]);
    ASSERT_TRUE(tile.kind == Tile::Kind::banded || tile.query_count == tile.key_count) << name(c);
  }
}

TEST(Tile, ClassesAreExact) {
  for (const Case& c : every_case({17, 64, 203, 1003}, {1, 3, 8})) {
    const Band band = band_of(c);
    for (int q = 0; q < c.layout.chunks; ++q)
      for (int k = 0; k < c.layout.chunks; ++k)
        for (const Piece& queries : chunk_pieces(c.layout, q))
          for (const Piece& keys : chunk_pieces(c.layout, k)) {
            const int64_t pairs = seen_pairs(band, {queries}, {keys});
            const TileClass expected = pairs == 0                            ? TileClass::empty
                                       : pairs == queries.count * keys.count ? TileClass::full
                                                                             : TileClass::partial;
            ASSERT_EQ(classify(band, queries, keys), expected) << name(c) << ", chunks " << q << " and " << k;
          }
  }
}

TEST(Tile, CountsSeenPairs) {
  for (const Case& c : every_case({17, 64, 203}, {1, 3, 8, 20})) {
    const Band band = band_of(c);
    for (int q = 0; q < c.layout.chunks; ++q)
      for (int k = 0; k < c.layout.chunks; ++k) {
        const Pieces queries = chunk_pieces(c.layout, q), keys = chunk_pieces(c.layout, k);
        ASSERT_EQ(count_pairs(band, queries, keys), seen_pairs(band, queries, keys)) << name(c);
      }
  }
}

TEST(Tile, CutsCoverEverySeenPairOnceOfAChunk) {
  for (const Case& c : every_case({17, 64, 203}, {1, 3, 8}))
    for (int q = 0; q < c.layout.chunks; ++q)
      for (int k = 0; k < c.layout.chunks; ++k) expect_exact_cover(c, {q}, {k});
}

TEST(Tile, CutsCoverEverySeenPairOnceOfABlock) {
  for (const Case& c : every_case({64, 1003}, {8})) {
    expect_exact_cover(c, {0, 1}, {0, 2, 4, 6});
    expect_exact_cover(c, {5, 2, 3}, {7, 1});
    expect_exact_cover(c, {0, 1, 2, 3, 4, 5, 6, 7}, {0, 1, 2, 3, 4, 5, 6, 7});
  }
}

TEST(Tile, CutsCoverEverySeenPairOnceOfLongPieces) {
  for (const Case& c : every_case({2001}, {1, 2})) expect_exact_cover(c, {0}, {c.layout.chunks - 1});
}

TEST(Tile, NothingMakesNoTiles) {
  const Band band({}, 8, 8);
  EXPECT_EQ(classify(band, {0, 0, 1}, {0, 8, 1}), TileClass::empty);
  EXPECT_TRUE(cut_tiles(band, {}, {{0, 8, 1}}).empty());
  EXPECT_TRUE(cut_tiles(band, {{0, 8, 1}}, {}).empty());
  EXPECT_TRUE(cut_tiles(Band({.causal = true}, 8, 8), {{0, 4, 1}}, {{4, 4, 1}}).empty());
}

TEST(Tile, JoinsFullTiles) {
  const Layout layout{Order::zigzag, 64, 4};
  const std::vector<Tile> full =
      cut_tiles(Band({}, 64, 64), chunk_pieces(layout, {0, 2}), chunk_pieces(layout, {1, 3}));
  ASSERT_EQ(full.size(), 1u);
  EXPECT_EQ(full[0].query_count, 32);
  EXPECT_EQ(full[0].key_count, 32);
  // Causal, a chunk with itself: its late piece sees its early one, and each itself up to the diagonal.
  const Pieces own = chunk_pieces(layout, 1);
  const std::vector<Tile> causal = cut_tiles(Band({.causal = true}, 64, 64), own, own);
  ASSERT_EQ(causal.size(), 3u);
  EXPECT_EQ(causal[0].kind, Tile::Kind::full);
  EXPECT_EQ(causal[1].kind, Tile::Kind::diagonal);
  EXPECT_EQ(causal[2].kind, Tile::Kind::diagonal);
}

TEST(Tile, StripedCausalWorkIsDiagonal) {
  const Layout layout{Order::striped, 64, 4};
  const Band band({.causal = true}, 64, 64);
  for (int q = 0; q < 4; ++q)
    for (int k = 0; k < 4; ++k) {
      const std::vector<Tile> tiles = cut_tiles(band, chunk_pieces(layout, q), chunk_pieces(layout, k));
      ASSERT_EQ(tiles.size(), 1u);
      EXPECT_EQ(tiles[0].kind, Tile::Kind::diagonal);
      EXPECT_EQ(tiles[0].query_count, q < k ? 15 : 16);
    }
}

TEST(Tile, WindowsOnLongPiecesLeaveLittleMaskedWork) {
  for (bool causal : {false, true})
    for (int64_t window : {64, 256, 1000})
      for (const Layout& layout : {Layout{Order::contiguous, 4096, 1}, Layout{Order::zigzag, 8192, 2}}) {
        const Case c{{.causal = causal, .window = window}, layout};
        const Band band = band_of(c);
        int64_t area = 0, pairs = 0;
        for (int q = 0; q < layout.chunks; ++q)
          for (int k = 0; k < layout.chunks; ++k)
            for (const Tile& tile : cut_tiles(band, chunk_pieces(layout, q), chunk_pieces(layout, k))) {
              area += tile.query_count * tile.key_count;
              pairs += seen_in(tile, band);
            }
        EXPECT_LT(static_cast<double>(area), 2.1 * static_cast<double>(pairs)) << name(c);
      }
}

TEST(Tile, BandedTilesStaySmallOnLongPieces) {
  const int64_t tokens = 1 << 17;
  const Piece all{0, tokens, 1};
  for (const Mask& mask :
       {Mask{.documents = {70001, 99, tokens - 70100}}, Mask{.causal = true, .documents = {70001, 99, tokens - 70100}},
        Mask{.window = 32768}, Mask{.causal = true, .window = 32768}, Mask{.causal = true, .prefix = 50000}}) {
    const Band band(mask, tokens, tokens);
    const std::vector<Tile> tiles = cut_tiles(band, {all}, {all});
    int64_t pairs = 0;
    for (const Tile& tile : tiles) {
      pairs += seen_in(tile, band);
      ASSERT_TRUE(tile.kind != Tile::Kind::banded || tile.query_count * tile.key_count <= 1 << 20) << to_text(mask);
    }
    EXPECT_EQ(pairs, count_pairs(band, {all}, {all})) << to_text(mask);
    EXPECT_LT(tiles.size(), 1000u) << to_text(mask);
  }
}

}  // namespace
}  // namespace startrail

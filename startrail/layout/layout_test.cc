#include "startrail/layout/layout.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "startrail/base/error.h"
#include "startrail/base/testing.h"

namespace startrail {
namespace {

constexpr Order kOrders[] = {Order::contiguous, Order::zigzag, Order::striped};

std::string name(const Layout& layout) {
  return cat(to_text(layout.order), ", ", layout.tokens, " tokens, ", layout.chunks, " chunks");
}

std::vector<int64_t> tokens_of(const Pieces& pieces) {
  std::vector<int64_t> tokens;
  for (const Piece& piece : pieces)
    for (int64_t i = 0; i < piece.count; ++i) tokens.push_back(piece.at(i));
  return tokens;
}

// Calls `visit` for every order, for fewer and for more tokens than pieces.
template <class Visit>
void each_layout(const Visit& visit) {
  for (Order order : kOrders)
    for (int chunks = 1; chunks <= 24; ++chunks)
      for (int64_t tokens = 1; tokens <= 200; ++tokens) visit(Layout{order, tokens, chunks});
}

TEST(Layout, OwnsEveryTokenOnce) {
  each_layout([](const Layout& layout) {
    std::vector<int> owners(layout.tokens);
    for (int chunk = 0; chunk < layout.chunks; ++chunk)
      for (int64_t token : tokens_of(chunk_pieces(layout, chunk))) ++owners.at(token);
    ASSERT_EQ(owners, std::vector<int>(layout.tokens, 1)) << name(layout);
  });
}

TEST(Layout, ChunksDifferByAtMostOneToken) {
  each_layout([](const Layout& layout) {
    int64_t least = layout.tokens, most = 0;
    for (int chunk = 0; chunk < layout.chunks; ++chunk) {
      const Pieces pieces = chunk_pieces(layout, chunk);
      const int64_t tokens = chunk_tokens(layout, chunk);
      ASSERT_LE(pieces.size(), layout.order == Order::zigzag ? 2 : 1) << name(layout);
      ASSERT_EQ(tokens, static_cast<int64_t>(tokens_of(pieces).size())) << name(layout);
      least = std::min(least, tokens);
      most = std::max(most, tokens);
    }
    ASSERT_LE(most - least, 1) << name(layout);
  });
}

TEST(Layout, ZigzagPiecesDifferByAtMostOneToken) {
  each_layout([](const Layout& layout) {
    if (layout.order != Order::zigzag) return;
    for (int chunk = 0; chunk + 1 < layout.chunks; ++chunk) {  // the two pieces of the last chunk are joined
      const Pieces pieces = chunk_pieces(layout, chunk);
      for (const Piece& piece : pieces) {
        ASSERT_GE(piece.count, layout.tokens / (2 * layout.chunks)) << name(layout);
        ASSERT_LE(piece.count, layout.tokens / (2 * layout.chunks) + 1) << name(layout);
      }
    }
  });
}

TEST(Layout, HoldsNoEmptyPieces) {
  each_layout([](const Layout& layout) {
    for (int chunk = 0; chunk < layout.chunks; ++chunk)
      for (const Piece& piece : chunk_pieces(layout, chunk)) {
        ASSERT_GT(piece.count, 0) << name(layout);
        ASSERT_GT(piece.stride, 0) << name(layout);
      }
  });
}

TEST(Layout, CutsAsItsNameSays) {
  const Layout contiguous{Order::contiguous, 10, 3};
  EXPECT_EQ(chunk_pieces(contiguous, 0), (Pieces{{0, 4, 1}}));
  EXPECT_EQ(chunk_pieces(contiguous, 1), (Pieces{{4, 3, 1}}));
  EXPECT_EQ(chunk_pieces(contiguous, 2), (Pieces{{7, 3, 1}}));
  const Layout zigzag{Order::zigzag, 12, 3};
  EXPECT_EQ(chunk_pieces(zigzag, 0), (Pieces{{0, 2, 1}, {10, 2, 1}}));
  EXPECT_EQ(chunk_pieces(zigzag, 1), (Pieces{{2, 2, 1}, {8, 2, 1}}));
  EXPECT_EQ(chunk_pieces(zigzag, 2), (Pieces{{4, 4, 1}}));
  const Layout striped{Order::striped, 7, 3};
  EXPECT_EQ(chunk_pieces(striped, 0), (Pieces{{0, 3, 3}}));
  EXPECT_EQ(chunk_pieces(striped, 1), (Pieces{{1, 2, 3}}));
  EXPECT_EQ(chunk_pieces(striped, 2), (Pieces{{2, 2, 3}}));
}

TEST(Layout, BlockHoldsItsChunksOneAfterTheOther) {
  for (Order order : kOrders) {
    const Layout layout{order, 45, 6};
    const std::vector<int> chunks = {4, 0, 1, 5};
    std::vector<int64_t> expected;
    for (int chunk : chunks)
      for (int64_t token : tokens_of(chunk_pieces(layout, chunk))) expected.push_back(token);
    EXPECT_EQ(tokens_of(chunk_pieces(layout, chunks)), expected) << name(layout);
    EXPECT_EQ(chunk_tokens(layout, chunks), static_cast<int64_t>(expected.size())) << name(layout);
  }
}

TEST(Layout, BlockJoinsNeighbours) {
  const Layout layout{Order::contiguous, 12, 4};
  EXPECT_EQ(chunk_pieces(layout, {1, 2}), (Pieces{{3, 6, 1}}));
  EXPECT_EQ(chunk_pieces(layout, {2, 1}), (Pieces{{6, 3, 1}, {3, 3, 1}}));
}

TEST(Layout, SubPieceKeepsTheStride) { EXPECT_EQ(sub_piece({5, 10, 3}, 2, 4), (Piece{11, 4, 3})); }

TEST(Layout, RefusesNothingToSplit) {
  EXPECT_EQ(error_of([] { check_layout({Order::zigzag, 0, 4}); }), "0 tokens cannot be split: give 1 or more");
  EXPECT_EQ(error_of([] { check_layout({Order::zigzag, 4, 0}); }), "0 ranks cannot hold tokens: give 1 or more");
  EXPECT_NO_THROW(check_layout({Order::zigzag, 1, 1}));
  EXPECT_THROW(chunk_pieces({Order::zigzag, 8, 2}, 2), InternalError);
  EXPECT_THROW(chunk_tokens({Order::zigzag, 8, 2}, -1), InternalError);
}

TEST(Layout, ListsHoldEveryTokenOnce) {
  const auto listed = [](std::vector<Pieces> lists, int64_t tokens = 6) {
    const int chunks = static_cast<int>(lists.size());
    return Layout{Order::listed, tokens, chunks, std::make_shared<const std::vector<Pieces>>(std::move(lists))};
  };
  const Layout layout = listed({{{4, 1}, {5, 1}, {0, 0}}, {}, {{0, 2, 2}, {1, 2, 2}}});
  EXPECT_NO_THROW(check_layout(layout));
  EXPECT_EQ(chunk_pieces(layout, 0), (Pieces{{4, 2}}));
  EXPECT_EQ(chunk_tokens(layout, 1), 0);
  EXPECT_EQ(chunk_pieces(layout, {2, 0}), (Pieces{{0, 2, 2}, {1, 2, 2}, {4, 2}}));

  EXPECT_EQ(error_of([&] {
              check_layout(listed({{{0, 3}}, {{3, 2}}}));
            }),
            "token 5 of 6 is on no rank: each must be on one");
  EXPECT_EQ(error_of([&] {
              check_layout(listed({{{0, 4}}, {{3, 3}}}));
            }),
            "token 3 is listed twice, the second time on rank 1: each must be on one rank");
  EXPECT_EQ(error_of([&] {
              check_layout(listed({{{0, 4}}, {{4, 3}}}));
            }),
            "rank 1's piece of 3 tokens from 4 on, every 1, is not of a sequence of 6");
  EXPECT_EQ(error_of([&] {
              check_layout(listed({{{-1, 7}}}));
            }),
            "rank 0's piece of 7 tokens from -1 on, every 1, is not of a sequence of 6");
  EXPECT_EQ(error_of([] {
              check_layout({Order::listed, 6, 2});
            }),
            "layout listed has pieces for 0 ranks, not for 2: give the pieces of each rank");

  const Layout lengths{Order::listed, 6, 3, list_lengths({1, 0, 5})};
  EXPECT_NO_THROW(check_layout(lengths));
  EXPECT_EQ(chunk_pieces(lengths, 2), (Pieces{{1, 5}}));
  EXPECT_EQ(error_of([] { list_lengths({3, -1}); }), "a rank cannot hold -1 tokens: give 0 or more for each");
}

TEST(Layout, OrderReadsBack) {
  for (Order order : kOrders) EXPECT_EQ(parse_order(to_text(order)), order);
  EXPECT_EQ(error_of([] { parse_order("zig"); }),
            "layout 'zig' is not known; valid layouts: contiguous, zigzag, striped");
}

}  // namespace
}  // namespace startrail

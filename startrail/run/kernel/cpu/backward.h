// The backward pass of flash.h: a task is some keys of a range, against all query rows of all heads of a group.
#pragma once

#include "startrail/run/kernel/cpu/masks.h"

namespace startrail::cpu {
namespace {  // one copy per level

template <typename Level>
struct BackwardPass : Masks<Level> {
  using Base = Masks<Level>;
  using Base::kWidth, Base::kLanes, Base::kBackwardKeys;
  using Base::load, Base::store, Base::choose, Base::exp, Base::scaled_by;
  using Base::pack_down, Base::pack_strip, Base::transpose, Base::product_of_seen;
  using typename Base::Vector, typename Base::Integers;
  template <int64_t lanes>
  using Seen = typename Base::template Seen<lanes>;

  static constexpr int64_t kBackwardRows = 64;  // query rows of a tile
  static_assert(kBackwardRows % kLanes == 0);

  // Of float words: pairs need no more.
  static int64_t scratch_bytes(int64_t dim, int64_t keys) {
    const int64_t padded = round_up(dim, kLanes);
    return 4 * (keys * (3 * dim + 2 * padded) + kBackwardRows * (3 * dim + 2 * padded + 4 * kBackwardKeys) +
                2 * kLanes * dim) +
           64 * 16;
  }

  template <typename Word>
  struct Tile {
    float *scores, *dweights;  // [strip][key][lane]; become weights and dscores where words are floats
    Word* weights;             // to the left of a product over queries: [strip][key][words of lanes]
    Word* dscores_left;        // the same
    Word* dscores_right;       // to the right of a product over keys: [strip][words of keys][lane]
  };

  // The scratch memory of a call on n keys.
  template <typename Word>
  struct Room {
    Word *keys, *values, *keys_down;
    float *dkeys, *dvalues;  // [n][padded]
    Word *queries, *douts, *queries_down, *douts_down;
    float* dqueries;
    Word* at_hand;
    float* sum_at_hand;
    Tile<Word> tile;
    Room(int64_t dim, int64_t n, void* scratch) {
      const int64_t words = words_of(dim, Word{}), padded = round_up(dim, kLanes);
      Taker take{static_cast<char*>(scratch)};
      keys = keys_down = static_cast<Word*>(take(n * words));
      values = static_cast<Word*>(take(n * words));
      dkeys = static_cast<float*>(take(n * padded));
      dvalues = static_cast<float*>(take(n * padded));
      queries = static_cast<Word*>(take(kBackwardRows * words));
      douts = static_cast<Word*>(take(kBackwardRows * words));
      queries_down = static_cast<Word*>(take(kBackwardRows * padded));
      douts_down = static_cast<Word*>(take(kBackwardRows * padded));
      dqueries = static_cast<float*>(take(kBackwardRows * dim));
      at_hand = static_cast<Word*>(take(kLanes * dim));
      sum_at_hand = static_cast<float*>(take(kLanes * dim));
      constexpr int64_t kPairCount = kBackwardRows * kBackwardKeys;
      tile.scores = static_cast<float*>(take(kPairCount));
      tile.dweights = static_cast<float*>(take(kPairCount));
      if constexpr (kPaired<Word>) {
        tile.weights = static_cast<Word*>(take(kPairCount / 2));
        tile.dscores_left = static_cast<Word*>(take(kPairCount / 2));
        tile.dscores_right = static_cast<Word*>(take(kPairCount / 2));
        keys_down = static_cast<Word*>(take(round_up(n, 2) * dim / 2));
      } else {
        tile.weights = tile.scores;
        tile.dscores_left = tile.dscores_right = tile.dweights;
      }
    }
  };

  // Keys [begin, begin + n) of a range: across for the products that give scores, down for the one that gives dq.
  template <typename Word>
  struct Keys {
    const Word *keys, *values;
    Down<Word> down;
  };
  template <typename Word>
  static Keys<Word> pack_keys(const Problem& p, const KeyRange& range, int64_t begin, int64_t n,
                              const Room<Word>& room) {
    constexpr int64_t pairing = kPaired<Word> ? 2 : 1;
    const int64_t dim = p.dim, key_at = (range.begin + begin) * p.k.row, value_at = (range.begin + begin) * p.v.row;
    Keys<Word> packed;
    packed.values = pack_across(p.v, p.bfloat16, value_at, n, dim, room.values);
    packed.down = pack_down(p.k, p.bfloat16, key_at, n, round_up(n, pairing), dim, room.keys_down, dim, true);
    packed.keys = packed.down.data;  // the same, where words are floats
    if constexpr (kPaired<Word>) packed.keys = pack_across(p.k, p.bfloat16, key_at, n, dim, room.keys);
    return packed;
  }

  // A tile of query rows: what backward() reads of them, and where they lie.
  struct RowTile {
    int64_t head, row, count, strips;
    int64_t query_at, dout_at;
    alignas(64) float lse[kBackwardRows], delta[kBackwardRows];
    Seen<kBackwardRows> seen;
    RowTile(const Backward& work, const KeyRange& range, int64_t of_head, int64_t first, int64_t rows)
        : head(of_head),
          row(first),
          count(rows),
          strips((rows + kLanes - 1) / kLanes),
          query_at(head * work.problem.q.head + row * work.problem.q.row),
          dout_at(head * work.dout.head + row * work.dout.row),
          seen(range, first, rows) {
      bool blind = false;
      for (int64_t i = 0; i < kBackwardRows; ++i) {
        const bool has = i < rows;
        lse[i] = has ? work.lse.data[head * work.lse.head + (row + i) * work.lse.row] : 0;
        delta[i] = has ? work.delta.data[head * work.delta.head + (row + i) * work.delta.row] * work.problem.scale : 0;
        if (has && lse[i] != -kInfinity) continue;
        lse[i] = 0;
        seen.begin[i] = seen.end[i] = 0;  // a lane without a row, too: 0 times an infinite key would be NaN
        blind = true;
      }
      if (blind) seen.bound();
    }
  };
  template <typename Word>
  struct PackedRows {
    Down<Word> queries, douts;
  };
  template <typename Word>
  static PackedRows<Word> pack_rows(const Backward& work, const RowTile& tile, bool some_partial,
                                    const Room<Word>& room) {
    const Problem& p = work.problem;
    const int64_t dim = p.dim, words = words_of(dim, Word{}), padded = round_up(dim, kLanes);
    for (int64_t s = 0; s < tile.strips; ++s) {
      const int64_t in_strip = smaller<int64_t>(kLanes, tile.count - s * kLanes);
      pack_strip(p.q, p.bfloat16, tile.query_at + s * kLanes * p.q.row, in_strip, dim,
                 room.queries + s * words * kLanes, room.at_hand);
      pack_strip(work.dout, p.bfloat16, tile.dout_at + s * kLanes * work.dout.row, in_strip, dim,
                 room.douts + s * words * kLanes, room.at_hand);
    }
    const auto down = [&](const Rows& rows, int64_t at, Word* to) {
      return pack_down(rows, p.bfloat16, at, tile.count, tile.strips * kLanes, dim, to, padded, some_partial);
    };
    return {down(p.q, tile.query_at, room.queries_down), down(work.dout, tile.dout_at, room.douts_down)};
  }

  // A tile's share of dq, which room.dqueries has, to its rows.
  template <typename Word>
  static void add_dq(const Backward& work, const RowTile& tile, const Room<Word>& room) {
    const int64_t dim = work.problem.dim;
    for (int64_t i = 0; i < tile.count; i += kLanes) {
      const int64_t in_strip = smaller<int64_t>(kLanes, tile.count - i);
      transpose(room.dqueries + i * dim, kLanes, dim, in_strip, room.sum_at_hand, dim);
      for (int64_t lane = 0; lane < in_strip; ++lane) {
        float* const to = work.dq.data + tile.head * work.dq.head + (tile.row + i + lane) * work.dq.row;
        for (int64_t d = 0; d < dim; ++d) to[d] += room.sum_at_hand[lane * dim + d];
      }
    }
  }

  // The keys' dk and dv to their rows.
  template <typename Word>
  static void add_dk_dv(const Backward& work, int64_t first, int64_t n, const Room<Word>& room) {
    const int64_t dim = work.problem.dim, padded = round_up(dim, kLanes);
    for (int64_t k = 0; k < n; ++k) {
      float* const dk = work.dk.data + (first + k) * work.dk.row;
      float* const dv = work.dv.data + (first + k) * work.dv.row;
      for (int64_t d = 0; d < dim; ++d) {
        dk[d] += room.dkeys[k * padded + d];
        dv[d] += room.dvalues[k * padded + d];
      }
    }
  }

  template <typename Word>
  static void run(const Backward& work, int64_t range_index, int64_t begin, int64_t end, void* scratch) {
    const Problem& p = work.problem;
    const KeyRange& range = p.ranges[range_index];
    constexpr int64_t pairing = kPaired<Word> ? 2 : 1;
    const int64_t dim = p.dim, words = words_of(dim, Word{}), padded = round_up(dim, kLanes), n = end - begin;
    const Room<Word> room(dim, n, scratch);
    const Tile<Word>& tile = room.tile;
    const Keys<Word> keys = pack_keys(p, range, begin, n, room);
    for (int64_t i = 0; i < n * padded; ++i) room.dkeys[i] = room.dvalues[i] = 0;

    for (int64_t head = 0; head < p.heads; ++head)
      for (int64_t row = 0; row < p.queries; row += kBackwardRows) {
        const int64_t rows = smaller(kBackwardRows, p.queries - row);
        const auto turn = [&](bool before) { work.turn(work.context, head, row / kBackwardRows, before); };
        if (extent(range, row, rows).none(begin, end)) {
          turn(true);
          turn(false);
          continue;
        }
        const RowTile of(work, range, head, row, rows);
        const Seen<kBackwardRows>& seen = of.seen;
        const bool any = !seen.none(begin, end);
        if (any) {
          const PackedRows<Word> packed = pack_rows(work, of, !seen.every(begin, end), room);
          for (int64_t i = 0; i < of.strips * kLanes * dim; ++i) room.dqueries[i] = 0;
          const int64_t step = even_step(n, Base::kBackwardTile, 2);
          for (int64_t k = 0; k < n; k += step) {
            const int64_t count = smaller(step, n - k), key = begin + k;
            if (seen.none(key, key + count)) continue;
            const bool partial = !seen.every(key, key + count);
            int64_t from = 0, to = of.strips;  // strips that see some of these keys
            while (partial && from < to && seen.none_of_strip(from, key, key + count)) ++from;
            while (partial && from < to && seen.none_of_strip(to - 1, key, key + count)) --to;
            for (int64_t s = from; s < to; ++s) {
              Base::template product<false>(count, 1, words, Left<Word>{keys.keys + k * words, words, 1, 0},
                                            Right<Word>{room.queries + s * words * kLanes, kLanes},
                                            tile.scores + s * kBackwardKeys * kLanes, kLanes);
              Base::template product<false>(count, 1, words, Left<Word>{keys.values + k * words, words, 1, 0},
                                            Right<Word>{room.douts + s * words * kLanes, kLanes},
                                            tile.dweights + s * kBackwardKeys * kLanes, kLanes);
            }
            differentiate(tile, from, to, count, p.scale, partial, seen, key, of.lse, of.delta);
            constexpr int64_t kWordsOfLanes = kLanes / pairing;
            const auto sum_over_queries = [&](const Word* left, const Word* right, float* c) {
              for (int64_t d = 0; d < padded; d += kLanes)
                Base::template product<true>(count, to - from, kWordsOfLanes,
                                             Left<Word>{left + from * kBackwardKeys * kWordsOfLanes, kWordsOfLanes, 1,
                                                        kBackwardKeys * kWordsOfLanes},
                                             Right<Word>{right + from * kWordsOfLanes * padded + d, padded},
                                             c + k * padded + d, padded);
            };
            if (partial && !packed.douts.finite)
              product_of_seen(work.dout, p.bfloat16, of.dout_at, rows, dim, tile.weights, seen, key, count,
                              room.dvalues + k * padded, padded);
            else
              sum_over_queries(tile.weights, packed.douts.data, room.dvalues);
            if (partial && !packed.queries.finite)
              product_of_seen(p.q, p.bfloat16, of.query_at, rows, dim, tile.dscores_left, seen, key, count,
                              room.dkeys + k * padded, padded);
            else
              sum_over_queries(tile.dscores_left, packed.queries.data, room.dkeys);
            for (int64_t s = from; s < to; ++s) {
              const Word* const right = tile.dscores_right + s * kBackwardKeys / pairing * kLanes;
              float* const sum = room.dqueries + s * dim * kLanes;
              if (partial && !keys.down.finite)
                product_of_seen(p.k, p.bfloat16, (range.begin + key) * p.k.row, count, dim, right, seen, key,
                                s * kLanes, sum);
              else
                Base::template product<true>(dim, 1, (count + pairing - 1) / pairing,
                                             Left<Word>{keys.down.data + k / pairing * dim, 1, dim, 0},
                                             Right<Word>{right, kLanes}, sum, kLanes);
            }
          }
        }
        turn(true);
        if (any) add_dq(work, of, room);
        turn(false);
      }
    add_dk_dv(work, range.begin + begin, n, room);
  }

  // Scores and dweights of a tile's strips [from, to) to weights and dscores.
  template <typename Word, typename Seen>
  static void differentiate(const Tile<Word>& tile, int64_t from, int64_t to, int64_t count, float scale, bool partial,
                            const Seen& seen, int64_t key, const float* lse, const float* delta) {
    for (int64_t s = from; s < to; ++s) {
      float* const scores = tile.scores + s * kBackwardKeys * kLanes;
      float* const dweights = tile.dweights + s * kBackwardKeys * kLanes;
      Vector weight[2][2], dscore[2][2];  // [row of a pair][half of the strip]
      const auto compute = [&](int64_t k, int64_t j) __attribute__((always_inline)) {
        const int64_t lane = s * kLanes + j;
        Vector w = exp(scaled_by(load(scores + k * kLanes + j), scale) - load(lse + lane));
        Vector d = w * (load(dweights + k * kLanes + j) * scale - load(delta + lane));
        if (partial) {
          const Integers where = seen.at(key + k, lane);
          w = choose(where, w, Vector{});
          d = choose(where, d, Vector{});
        }
        weight[k % 2][j / kWidth] = w;
        dscore[k % 2][j / kWidth] = d;
      };
      if constexpr (kPaired<Word>) {
        for (int64_t k = 0; k < count; k += 2) {
          for (int64_t i = k; i < k + 2; ++i)
            for (int64_t j = 0; j < kLanes; j += kWidth)
              if (i < count)
                compute(i, j);
              else
                weight[1][j / kWidth] = dscore[1][j / kWidth] = Vector{};
          for (int64_t i = k; i < smaller(k + 2, count); ++i) {
            const int64_t at = (s * kBackwardKeys + i) * kLanes / 2;
            store(tile.weights + at, Level::pair_lanes(weight[i % 2][0], weight[i % 2][1]));
            store(tile.dscores_left + at, Level::pair_lanes(dscore[i % 2][0], dscore[i % 2][1]));
          }
          for (int64_t j = 0; j < 2; ++j)
            store(tile.dscores_right + (s * kBackwardKeys + k) / 2 * kLanes + j * kWidth,
                  Level::pair_rows(dscore[0][j], dscore[1][j]));
        }
      } else {
        for (int64_t k = 0; k < count; ++k)
          for (int64_t j = 0; j < kLanes; j += kWidth) {
            compute(k, j);
            store(tile.weights + (s * kBackwardKeys + k) * kLanes + j, weight[k % 2][j / kWidth]);
            store(tile.dscores_left + (s * kBackwardKeys + k) * kLanes + j, dscore[k % 2][j / kWidth]);
          }
      }
    }
  }
};

}  // namespace
}  // namespace startrail::cpu

// Flash attention on vectors, once for all processor levels.
//
// Lanes are query rows, and every tile is transposed: scores are S[key][query] = K x Q^T, where an element of K is
// broadcast and a row of Q^T is a vector. So maximum, sum and rescaling of a row's softmax are vertical, K needs no
// transposing, and the weights come out as the vectors that the second product, O^T[dim][query] += V^T x P, wants. The
// running (out, lse) is the softmax state itself (maximum lse, sum 1): adding a block to it needs no merging.
#pragma once

#include "startrail/run/kernel/cpu/masks.h"
#include "startrail/run/kernel/cpu/rows.h"

namespace startrail::cpu {
namespace {  // one copy per level

template <typename Level>
struct Flash : Masks<Level> {
  using Base = Masks<Level>;
  using Base::kWidth, Base::kLanes, Base::kPairs, Base::kBackwardKeys;
  using Base::load, Base::store, Base::all, Base::choose, Base::exp, Base::scaled_by;
  using Base::pack_down, Base::pack_strip, Base::transpose, Base::product_of_seen;
  using typename Base::Vector, typename Base::Integers, typename Base::Words;
  template <int64_t lanes>
  using Seen = typename Base::template Seen<lanes>;

  static constexpr int64_t kForwardTile = 128;                            // keys of a tile in the forward pass
  static constexpr int64_t kForwardKeys = longest_step(kForwardTile, 2);  // room for them
  static constexpr int64_t kBackwardRows = 64;                            // rows of a tile in the backward pass
  static_assert(kBackwardRows % kLanes == 0 && kForwardKeys % 2 == 0);

  // Keys packed at a time: they and their values take a quarter of a megabyte, and so stay in the second-level cache.
  static int64_t panel_keys(int64_t dim) {
    return smaller<int64_t>(512, larger<int64_t>(128, (1 << 15) / dim / 128 * 128));
  }

  // ---- Forward.

  struct Tile {  // of one strip of query rows
    int64_t head, row, count;
  };

  template <typename Word>
  static void forward(const Forward& work, int64_t begin, int64_t end, void* scratch) {
    const Problem& p = work.problem;
    const int64_t dim = p.dim, words = words_of(dim, Word{}), most = panel_keys(dim);
    constexpr int64_t pairing = kPaired<Word> ? 2 : 1;
    const int64_t tiles_a_head = (end - begin + kLanes - 1) / kLanes, tiles = tiles_a_head * p.heads;
    char* free = static_cast<char*>(scratch);
    const auto take = [&free](int64_t count) {
      void* taken = free;
      free += round_up(count * 4, 64);
      return taken;
    };
    Word* const room_for_keys = static_cast<Word*>(take(most * words));
    Word* const values = static_cast<Word*>(take(most * dim));
    float* const scores = static_cast<float*>(take(kForwardKeys * kLanes));
    Word* weights;
    if constexpr (kPaired<Word>)
      weights = static_cast<Word*>(take(kForwardKeys * kLanes / 2));
    else
      weights = scores;
    Word* const queries = static_cast<Word*>(take(tiles * words * kLanes));
    float* const outs = static_cast<float*>(take(tiles * dim * kLanes));
    float* const tops = static_cast<float*>(take(tiles * kLanes));
    float* const sums = static_cast<float*>(take(tiles * kLanes));
    Word* const at_hand = static_cast<Word*>(take(kLanes * dim));
    const auto tile_at = [&](int64_t t) {
      const int64_t row = begin + t % tiles_a_head * kLanes;
      return Tile{t / tiles_a_head, row, smaller<int64_t>(kLanes, end - row)};
    };

    for (int64_t t = 0; t < tiles; ++t) {
      const Tile tile = tile_at(t);
      pack_strip(p.q, p.bfloat16, tile.head * p.q.head + tile.row * p.q.row, tile.count, dim,
                 queries + t * words * kLanes, at_hand);
      float* const out = outs + t * dim * kLanes;
      bool begun = false;
      for (int64_t lane = 0; lane < kLanes; ++lane) {
        const bool has = lane < tile.count;
        const float lse =
            has ? work.lse.data[tile.head * work.lse.head + (tile.row + lane) * work.lse.row] : -kInfinity;
        tops[t * kLanes + lane] = lse;
        sums[t * kLanes + lane] = lse == -kInfinity ? 0 : 1;
        begun |= lse != -kInfinity;
      }
      if (begun)
        transpose(work.out.data + tile.head * work.out.head + tile.row * work.out.row, work.out.row, tile.count, dim,
                  out, kLanes);
      for (int64_t lane = 0; lane < kLanes; ++lane)
        for (int64_t d = 0; tops[t * kLanes + lane] == -kInfinity && d < dim; ++d) out[d * kLanes + lane] = 0;
    }

    for (int64_t r = 0; r < p.range_count; ++r) {
      const KeyRange& range = p.ranges[r];
      const Extent here = extent(range, begin, end - begin);
      for (int64_t panel = here.first / most * most; panel < here.last; panel += most) {
        const int64_t panel_end = smaller(range.count, panel + most), in_panel = panel_end - panel;
        const int64_t key_at = (range.begin + panel) * p.k.row, value_at = (range.begin + panel) * p.v.row;
        const Word* keys = nullptr;
        bool finite = true;
        for (int64_t t = 0; t < tiles; ++t) {
          const Tile tile = tile_at(t);
          const Seen<kLanes> seen(range, tile.row, tile.count);
          if (seen.none(panel, panel_end)) continue;
          if (!keys) {
            keys = pack_across(p.k, p.bfloat16, key_at, in_panel, dim, room_for_keys);
            finite = Base::pack_groups(p.v, p.bfloat16, value_at, in_panel, dim, values, at_hand,
                                       range.seen_begin != nullptr);
          }
          if (work.pack_only) break;
          // Only keys that some row sees, from an even one because of pairs.
          const int64_t first = larger<int64_t>(0, seen.first - panel) / 2 * 2,
                        last = smaller(in_panel, seen.last - panel), step = even_step(last - first, kForwardTile, 2);
          for (int64_t k = first; k < last; k += step) {
            const int64_t count = smaller(step, last - k), key = panel + k;
            Base::template product<false>(count, 1, words, Left<Word>{keys + k * words, words, 1, 0},
                                          Right<Word>{queries + t * words * kLanes, kLanes}, scores, kLanes);
            const bool partial = !seen.every(key, key + count);
            float* const out = outs + t * dim * kLanes;
            soften(scores, weights, count, p.scale, partial, seen, key, tops + t * kLanes, sums + t * kLanes, out, dim);
            // The other half of a last pair is a key that no row sees.
            const bool half_seen = kPaired<Word> && count % 2 != 0 && k + count < in_panel;
            if ((partial || half_seen) && !finite)
              product_of_seen(p.v, p.bfloat16, value_at + k * p.v.row, count, dim, weights, seen, key, 0, out);
            else
              Base::product_of_groups(dim, values, (in_panel + pairing - 1) / pairing, k / pairing,
                                      (count + pairing - 1) / pairing, Right<Word>{weights, kLanes}, out, kLanes);
          }
        }
      }
    }

    for (int64_t t = 0; t < tiles; ++t) {
      const Tile tile = tile_at(t);
      float* const out = outs + t * dim * kLanes;
      float shares[kLanes];
      for (int64_t lane = 0; lane < kLanes; ++lane) {
        const float sum = sums[t * kLanes + lane];
        shares[lane] = sum == 0 ? 0 : 1 / sum;
        if (lane < tile.count)
          work.lse.data[tile.head * work.lse.head + (tile.row + lane) * work.lse.row] =
              sum == 0 ? -kInfinity : tops[t * kLanes + lane] + __builtin_logf(sum);
      }
      for (int64_t d = 0; d < dim; ++d)
        for (int64_t j = 0; j < kLanes; j += kWidth)
          store(out + d * kLanes + j, load(out + d * kLanes + j) * load(shares + j));
      transpose(out, kLanes, dim, tile.count, work.out.data + tile.head * work.out.head + tile.row * work.out.row,
                work.out.row);
    }
  }

  // Scores of a strip to weights e^(score - top), with top, sum and out brought along.
  template <typename Word, typename Seen>
  static void soften(const float* scores, Word* weights, int64_t count, float scale, bool partial, const Seen& seen,
                     int64_t key, float* tops, float* sums, float* out, int64_t dim) {
    for (int64_t j = 0; j < kLanes; j += kWidth) {
      Vector top = all(-kInfinity);
      for (int64_t k = 0; k < count; ++k) {
        Vector score = load(scores + k * kLanes + j);
        if (partial) score = choose(seen.at(key + k, j), score, all(-kInfinity));
        top = choose(score > top, score, top);
      }
      const Vector before = load(tops + j), scaled = scaled_by(top, scale),
                   after = choose(scaled > before, scaled, before);
      const Vector shift = choose(after == -kInfinity, Vector{}, after), fade = exp(before - shift);
      float moved[kWidth];
      store(moved, after - before);  // NaN where both are -inf
      bool same = true;
      for (int lane = 0; lane < kWidth; ++lane) same &= moved[lane] == 0;
      store(tops + j, after);
      if (!same)
        for (int64_t d = 0; d < dim; ++d) store(out + d * kLanes + j, load(out + d * kLanes + j) * fade);
      Vector sum{};  // of this tile alone, as in a product: a long row's sum is then made of few rounded parts
      const auto weigh = [&](int64_t k) __attribute__((always_inline)) {
        Vector weight = exp(scaled_by(load(scores + k * kLanes + j), scale) - shift);
        if (partial) weight = choose(seen.at(key + k, j), weight, Vector{});
        sum += weight;
        return weight;
      };
      if constexpr (kPaired<Word>) {
        for (int64_t k = 0; k < count; k += 2) {
          const Vector even = weigh(k), odd = k + 1 < count ? weigh(k + 1) : Vector{};
          store(weights + k / 2 * kLanes + j, Level::pair_rows(even, odd));
        }
      } else {
        for (int64_t k = 0; k < count; ++k) store(weights + k * kLanes + j, weigh(k));
      }
      store(sums + j, load(sums + j) * fade + sum);
    }
  }

  // ---- Backward.

  template <typename Word>
  struct BackwardTile {
    float *scores, *dweights;  // [strip][key][lane]; become weights and dscores where words are floats
    Word* weights;             // to the left of a product over queries: [strip][key][words of lanes]
    Word* dscores_left;        // the same
    Word* dscores_right;       // to the right of a product over keys: [strip][words of keys][lane]
  };

  template <typename Word>
  static void backward(const Backward& work, int64_t range_index, int64_t begin, int64_t end, void* scratch) {
    const Problem& p = work.problem;
    const KeyRange& range = p.ranges[range_index];
    constexpr int64_t pairing = kPaired<Word> ? 2 : 1;
    const int64_t dim = p.dim, words = words_of(dim, Word{}), padded = round_up(dim, kLanes), n = end - begin;
    char* free = static_cast<char*>(scratch);
    const auto take = [&free](int64_t count) {
      void* taken = free;
      free += round_up(count * 4, 64);
      return taken;
    };
    Word* const room_for_keys = static_cast<Word*>(take(n * words));
    Word* const room_for_values = static_cast<Word*>(take(n * words));
    Word* room_for_keys_down = room_for_keys;
    float* const dkeys = static_cast<float*>(take(n * padded));
    float* const dvalues = static_cast<float*>(take(n * padded));
    Word* const queries = static_cast<Word*>(take(kBackwardRows * words));
    Word* const douts = static_cast<Word*>(take(kBackwardRows * words));
    Word* const room_for_queries = static_cast<Word*>(take(kBackwardRows * padded));
    Word* const room_for_douts = static_cast<Word*>(take(kBackwardRows * padded));
    float* const dqueries = static_cast<float*>(take(kBackwardRows * dim));
    Word* const at_hand = static_cast<Word*>(take(kLanes * dim));
    float* const sum_at_hand = static_cast<float*>(take(kLanes * dim));
    BackwardTile<Word> tile;
    constexpr int64_t kPairCount = kBackwardRows * kBackwardKeys;
    tile.scores = static_cast<float*>(take(kPairCount));
    tile.dweights = static_cast<float*>(take(kPairCount));
    if constexpr (kPaired<Word>) {
      tile.weights = static_cast<Word*>(take(kPairCount / 2));
      tile.dscores_left = static_cast<Word*>(take(kPairCount / 2));
      tile.dscores_right = static_cast<Word*>(take(kPairCount / 2));
      room_for_keys_down = static_cast<Word*>(take(round_up(n, 2) * dim / 2));
    } else {
      tile.weights = tile.scores;
      tile.dscores_left = tile.dscores_right = tile.dweights;
    }

    const int64_t key_at = (range.begin + begin) * p.k.row, value_at = (range.begin + begin) * p.v.row;
    const Word* const values = pack_across(p.v, p.bfloat16, value_at, n, dim, room_for_values);
    const Down<Word> keys_down =
        pack_down(p.k, p.bfloat16, key_at, n, round_up(n, pairing), dim, room_for_keys_down, dim, true);
    const Word* keys = keys_down.data;  // the same, where words are floats
    if constexpr (kPaired<Word>) keys = pack_across(p.k, p.bfloat16, key_at, n, dim, room_for_keys);
    for (int64_t i = 0; i < n * padded; ++i) dkeys[i] = dvalues[i] = 0;

    for (int64_t head = 0; head < p.heads; ++head)
      for (int64_t row = 0; row < p.queries; row += kBackwardRows) {
        const int64_t rows = smaller(kBackwardRows, p.queries - row), strips = (rows + kLanes - 1) / kLanes;
        const auto turn = [&](bool before) { work.turn(work.context, head, row / kBackwardRows, before); };
        if (extent(range, row, rows).none(begin, end)) {
          turn(true);
          turn(false);
          continue;
        }
        alignas(64) float lse[kBackwardRows], delta[kBackwardRows];
        Seen<kBackwardRows> seen(range, row, rows);
        bool blind = false;
        for (int64_t i = 0; i < kBackwardRows; ++i) {
          const bool has = i < rows;
          lse[i] = has ? work.lse.data[head * work.lse.head + (row + i) * work.lse.row] : 0;
          delta[i] = has ? work.delta.data[head * work.delta.head + (row + i) * work.delta.row] * p.scale : 0;
          if (has && lse[i] != -kInfinity) continue;
          lse[i] = 0;
          seen.begin[i] = seen.end[i] = 0;  // a lane without a row, too: 0 times an infinite key would be NaN
          blind = true;
        }
        if (blind) seen.bound();
        const bool any = !seen.none(begin, end);
        const int64_t query_at = head * p.q.head + row * p.q.row, dout_at = head * work.dout.head + row * work.dout.row;
        if (any) {
          for (int64_t s = 0; s < strips; ++s) {
            const int64_t in_strip = smaller<int64_t>(kLanes, rows - s * kLanes);
            pack_strip(p.q, p.bfloat16, query_at + s * kLanes * p.q.row, in_strip, dim, queries + s * words * kLanes,
                       at_hand);
            pack_strip(work.dout, p.bfloat16, dout_at + s * kLanes * work.dout.row, in_strip, dim,
                       douts + s * words * kLanes, at_hand);
          }
          const bool some_partial = !seen.every(begin, end);
          const Down<Word> queries_down =
              pack_down(p.q, p.bfloat16, query_at, rows, strips * kLanes, dim, room_for_queries, padded, some_partial);
          const Down<Word> douts_down = pack_down(work.dout, p.bfloat16, dout_at, rows, strips * kLanes, dim,
                                                  room_for_douts, padded, some_partial);
          for (int64_t i = 0; i < strips * kLanes * dim; ++i) dqueries[i] = 0;
          const int64_t step = even_step(n, Base::kBackwardTile, 2);
          for (int64_t k = 0; !work.pack_only && k < n; k += step) {
            const int64_t count = smaller(step, n - k), key = begin + k;
            if (seen.none(key, key + count)) continue;
            const bool partial = !seen.every(key, key + count);
            int64_t from = 0, to = strips;  // strips that see some of these keys
            while (partial && from < to && seen.none_of_strip(from, key, key + count)) ++from;
            while (partial && from < to && seen.none_of_strip(to - 1, key, key + count)) --to;
            for (int64_t s = from; s < to; ++s) {
              Base::template product<false>(count, 1, words, Left<Word>{keys + k * words, words, 1, 0},
                                            Right<Word>{queries + s * words * kLanes, kLanes},
                                            tile.scores + s * kBackwardKeys * kLanes, kLanes);
              Base::template product<false>(count, 1, words, Left<Word>{values + k * words, words, 1, 0},
                                            Right<Word>{douts + s * words * kLanes, kLanes},
                                            tile.dweights + s * kBackwardKeys * kLanes, kLanes);
            }
            differentiate(tile, from, to, count, p.scale, partial, seen, key, lse, delta);
            constexpr int64_t kWordsOfLanes = kLanes / pairing;
            const auto sum_over_queries = [&](const Word* left, const Word* right, float* c) {
              for (int64_t d = 0; d < padded; d += kLanes)
                Base::template product<true>(count, to - from, kWordsOfLanes,
                                             Left<Word>{left + from * kBackwardKeys * kWordsOfLanes, kWordsOfLanes, 1,
                                                        kBackwardKeys * kWordsOfLanes},
                                             Right<Word>{right + from * kWordsOfLanes * padded + d, padded},
                                             c + k * padded + d, padded);
            };
            if (partial && !douts_down.finite)
              product_of_seen(work.dout, p.bfloat16, dout_at, rows, dim, tile.weights, seen, key, count,
                              dvalues + k * padded, padded);
            else
              sum_over_queries(tile.weights, douts_down.data, dvalues);
            if (partial && !queries_down.finite)
              product_of_seen(p.q, p.bfloat16, query_at, rows, dim, tile.dscores_left, seen, key, count,
                              dkeys + k * padded, padded);
            else
              sum_over_queries(tile.dscores_left, queries_down.data, dkeys);
            for (int64_t s = from; s < to; ++s) {
              const Word* const right = tile.dscores_right + s * kBackwardKeys / pairing * kLanes;
              float* const sum = dqueries + s * dim * kLanes;
              if (partial && !keys_down.finite)
                product_of_seen(p.k, p.bfloat16, key_at + k * p.k.row, count, dim, right, seen, key, s * kLanes, sum);
              else
                Base::template product<true>(dim, 1, (count + pairing - 1) / pairing,
                                             Left<Word>{keys_down.data + k / pairing * dim, 1, dim, 0},
                                             Right<Word>{right, kLanes}, sum, kLanes);
            }
          }
        }
        turn(true);
        for (int64_t i = 0; any && i < rows; i += kLanes) {
          const int64_t in_strip = smaller<int64_t>(kLanes, rows - i);
          transpose(dqueries + i * dim, kLanes, dim, in_strip, sum_at_hand, dim);
          for (int64_t lane = 0; lane < in_strip; ++lane) {
            float* const to = work.dq.data + head * work.dq.head + (row + i + lane) * work.dq.row;
            for (int64_t d = 0; d < dim; ++d) to[d] += sum_at_hand[lane * dim + d];
          }
        }
        turn(false);
      }

    for (int64_t k = 0; k < n; ++k) {
      float* const dk = work.dk.data + (range.begin + begin + k) * work.dk.row;
      float* const dv = work.dv.data + (range.begin + begin + k) * work.dv.row;
      for (int64_t d = 0; d < dim; ++d) {
        dk[d] += dkeys[k * padded + d];
        dv[d] += dvalues[k * padded + d];
      }
    }
  }

  // Scores and dweights of a tile's strips [from, to) to weights and dscores.
  template <typename Word, typename Seen>
  static void differentiate(const BackwardTile<Word>& tile, int64_t from, int64_t to, int64_t count, float scale,
                            bool partial, const Seen& seen, int64_t key, const float* lse, const float* delta) {
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

  // ---- What level.h wants.

  static void run_forward(const Forward& work, int64_t begin, int64_t end, void* scratch) {
    if constexpr (kPairs)
      if (work.problem.bfloat16) return forward<uint32_t>(work, begin, end, scratch);
    forward<float>(work, begin, end, scratch);
  }
  static void run_backward(const Backward& work, int64_t range, int64_t begin, int64_t end, void* scratch) {
    if constexpr (kPairs)
      if (work.problem.bfloat16) return backward<uint32_t>(work, range, begin, end, scratch);
    backward<float>(work, range, begin, end, scratch);
  }
  // Of float words: pairs need no more.
  static int64_t forward_scratch_bytes(int64_t dim, int64_t rows) {
    return 4 * (2 * panel_keys(dim) * dim + 2 * kForwardKeys * kLanes + rows * (2 * dim + 2) + kLanes * dim) + 64 * 16;
  }
  static int64_t backward_scratch_bytes(int64_t dim, int64_t keys) {
    const int64_t padded = round_up(dim, kLanes);
    return 4 * (keys * (3 * dim + 2 * padded) + kBackwardRows * (3 * dim + 2 * padded + 4 * kBackwardKeys) +
                2 * kLanes * dim) +
           64 * 16;
  }
  static const startrail::cpu::Level* level(const char* name) {
    static const startrail::cpu::Level made{name,
                                            kLanes,
                                            kBackwardRows,
                                            run_forward,
                                            forward_scratch_bytes,
                                            run_backward,
                                            backward_scratch_bytes,
                                            RowsOf<Level>::work()};
    return &made;
  }
};

}  // namespace
}  // namespace startrail::cpu

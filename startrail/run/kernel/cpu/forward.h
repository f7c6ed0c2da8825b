// The forward pass of flash.h: a task is some query rows of all heads of a group, against all keys.
#pragma once

#include "startrail/run/kernel/cpu/masks.h"

namespace startrail::cpu {
namespace {  // one copy per level

template <typename Level>
struct ForwardPass : Masks<Level> {
  using Base = Masks<Level>;
  using Base::kWidth, Base::kLanes;
  using Base::load, Base::store, Base::all, Base::choose, Base::exp, Base::scaled_by;
  using Base::pack_strip, Base::transpose, Base::product_of_seen;
  using typename Base::Vector;
  template <int64_t lanes>
  using Seen = typename Base::template Seen<lanes>;

  static constexpr int64_t kForwardTile = 128;                            // keys of a tile
  static constexpr int64_t kForwardKeys = longest_step(kForwardTile, 2);  // room for them
  static_assert(kForwardKeys % 2 == 0);

  // Keys packed at a time: they and their values take a quarter of a megabyte, and so stay in the second-level cache.
  static int64_t panel_keys(int64_t dim) {
    return smaller<int64_t>(512, larger<int64_t>(128, (1 << 15) / dim / 128 * 128));
  }
  // Of float words: pairs need no more.
  static int64_t scratch_bytes(int64_t dim, int64_t rows) {
    return 4 * (2 * panel_keys(dim) * dim + 2 * kForwardKeys * kLanes + rows * (2 * dim + 2) + kLanes * dim) + 64 * 16;
  }

  struct Tile {  // of one strip of query rows
    int64_t head, row, count;
  };
  // Rows [begin, end) of all heads, cut into tiles.
  struct Tiles {
    int64_t begin, end, in_head, count;
    Tiles(const Problem& p, int64_t from, int64_t to)
        : begin(from), end(to), in_head((to - from + kLanes - 1) / kLanes), count(in_head * p.heads) {}
    Tile operator[](int64_t t) const {
      const int64_t row = begin + t % in_head * kLanes;
      return {t / in_head, row, smaller<int64_t>(kLanes, end - row)};
    }
  };

  // The scratch memory of a call.
  template <typename Word>
  struct Room {
    Word *keys, *values;  // of a panel; values by groups
    float* scores;        // of a tile
    Word* weights;
    Word* queries;  // of all tiles, and the three below
    float *outs, *tops, *sums;
    Word* at_hand;
    Room(int64_t dim, int64_t tiles, void* scratch) {
      const int64_t words = words_of(dim, Word{}), most = panel_keys(dim);
      Taker take{static_cast<char*>(scratch)};
      keys = static_cast<Word*>(take(most * words));
      values = static_cast<Word*>(take(most * dim));
      scores = static_cast<float*>(take(kForwardKeys * kLanes));
      if constexpr (kPaired<Word>)
        weights = static_cast<Word*>(take(kForwardKeys * kLanes / 2));
      else
        weights = scores;
      queries = static_cast<Word*>(take(tiles * words * kLanes));
      outs = static_cast<float*>(take(tiles * dim * kLanes));
      tops = static_cast<float*>(take(tiles * kLanes));
      sums = static_cast<float*>(take(tiles * kLanes));
      at_hand = static_cast<Word*>(take(kLanes * dim));
    }
  };

  // Queries and the running result into the kernel's layout.
  template <typename Word>
  static void load_rows(const Forward& work, const Tiles& tiles, const Room<Word>& room) {
    const Problem& p = work.problem;
    const int64_t dim = p.dim, words = words_of(dim, Word{});
    for (int64_t t = 0; t < tiles.count; ++t) {
      const Tile tile = tiles[t];
      pack_strip(p.q, p.bfloat16, tile.head * p.q.head + tile.row * p.q.row, tile.count, dim,
                 room.queries + t * words * kLanes, room.at_hand);
      float* const out = room.outs + t * dim * kLanes;
      float *const tops = room.tops + t * kLanes, *const sums = room.sums + t * kLanes;
      bool begun = false;
      for (int64_t lane = 0; lane < kLanes; ++lane) {
        const bool has = lane < tile.count;
        const float lse =
            has ? work.lse.data[tile.head * work.lse.head + (tile.row + lane) * work.lse.row] : -kInfinity;
        tops[lane] = lse;
        sums[lane] = lse == -kInfinity ? 0 : 1;
        begun |= lse != -kInfinity;
      }
      if (begun)
        transpose(work.out.data + tile.head * work.out.head + tile.row * work.out.row, work.out.row, tile.count, dim,
                  out, kLanes);
      for (int64_t lane = 0; lane < kLanes; ++lane)
        for (int64_t d = 0; tops[lane] == -kInfinity && d < dim; ++d) out[d * kLanes + lane] = 0;
    }
  }

  // Divides the outputs by their sums and writes them back, with their lse.
  template <typename Word>
  static void store_rows(const Forward& work, const Tiles& tiles, const Room<Word>& room) {
    const int64_t dim = work.problem.dim;
    for (int64_t t = 0; t < tiles.count; ++t) {
      const Tile tile = tiles[t];
      float* const out = room.outs + t * dim * kLanes;
      float shares[kLanes];
      for (int64_t lane = 0; lane < kLanes; ++lane) {
        const float sum = room.sums[t * kLanes + lane];
        shares[lane] = sum == 0 ? 0 : 1 / sum;
        if (lane < tile.count)
          work.lse.data[tile.head * work.lse.head + (tile.row + lane) * work.lse.row] =
              sum == 0 ? -kInfinity : room.tops[t * kLanes + lane] + __builtin_logf(sum);
      }
      for (int64_t d = 0; d < dim; ++d)
        for (int64_t j = 0; j < kLanes; j += kWidth)
          store(out + d * kLanes + j, load(out + d * kLanes + j) * load(shares + j));
      transpose(out, kLanes, dim, tile.count, work.out.data + tile.head * work.out.head + tile.row * work.out.row,
                work.out.row);
    }
  }

  // `count` keys and values of a range from `first` on, and whether all values are finite, if some pairs are masked.
  template <typename Word>
  struct Panel {
    const Word* keys;
    bool finite;
  };
  template <typename Word>
  static Panel<Word> pack_panel(const Problem& p, const KeyRange& range, int64_t first, int64_t count,
                                const Room<Word>& room) {
    const int64_t key_at = (range.begin + first) * p.k.row, value_at = (range.begin + first) * p.v.row;
    return {pack_across(p.k, p.bfloat16, key_at, count, p.dim, room.keys),
            Base::pack_groups(p.v, p.bfloat16, value_at, count, p.dim, room.values, room.at_hand,
                              range.seen_begin != nullptr)};
  }

  template <typename Word>
  static void run(const Forward& work, int64_t begin, int64_t end, void* scratch) {
    const Problem& p = work.problem;
    const int64_t dim = p.dim, words = words_of(dim, Word{}), most = panel_keys(dim);
    constexpr int64_t pairing = kPaired<Word> ? 2 : 1;
    const Tiles tiles(p, begin, end);
    const Room<Word> room(dim, tiles.count, scratch);
    load_rows(work, tiles, room);
    for (int64_t r = 0; r < p.range_count; ++r) {
      const KeyRange& range = p.ranges[r];
      const Extent here = extent(range, begin, end - begin);
      for (int64_t panel = here.first / most * most; panel < here.last; panel += most) {
        const int64_t panel_end = smaller(range.count, panel + most), in_panel = panel_end - panel;
        Panel<Word> packed{nullptr, true};
        for (int64_t t = 0; t < tiles.count; ++t) {
          const Tile tile = tiles[t];
          const Seen<kLanes> seen(range, tile.row, tile.count);
          if (seen.none(panel, panel_end)) continue;
          if (!packed.keys) packed = pack_panel(p, range, panel, in_panel, room);
          // Only keys that some row sees, from an even one because of pairs.
          const int64_t first = larger<int64_t>(0, seen.first - panel) / 2 * 2,
                        last = smaller(in_panel, seen.last - panel), step = even_step(last - first, kForwardTile, 2);
          float* const out = room.outs + t * dim * kLanes;
          for (int64_t k = first; k < last; k += step) {
            const int64_t count = smaller(step, last - k), key = panel + k;
            Base::template product<false>(count, 1, words, Left<Word>{packed.keys + k * words, words, 1, 0},
                                          Right<Word>{room.queries + t * words * kLanes, kLanes}, room.scores, kLanes);
            const bool partial = !seen.every(key, key + count);
            soften(room.scores, room.weights, count, p.scale, partial, seen, key, room.tops + t * kLanes,
                   room.sums + t * kLanes, out, dim);
            // The other half of a last pair is a key that no row sees.
            const bool half_seen = kPaired<Word> && count % 2 != 0 && k + count < in_panel;
            if ((partial || half_seen) && !packed.finite)
              product_of_seen(p.v, p.bfloat16, (range.begin + key) * p.v.row, count, dim, room.weights, seen, key, 0,
                              out);
            else
              Base::product_of_groups(dim, room.values, (in_panel + pairing - 1) / pairing, k / pairing,
                                      (count + pairing - 1) / pairing, Right<Word>{room.weights, kLanes}, out, kLanes);
          }
        }
      }
    }
    store_rows(work, tiles, room);
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
};

}  // namespace
}  // namespace startrail::cpu

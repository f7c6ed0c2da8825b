// Which keys a query row sees, and products over seen pairs only. Used by flash.h.
#pragma once

#include "startrail/run/kernel/cpu/vectors.h"

namespace startrail::cpu {
namespace {  // one copy per level

// No row sees a key outside [first, last).
struct Extent {
  int64_t first, last;
  bool none(int64_t from, int64_t to) const { return last <= from || first >= to; }
};

// Of rows [row, row + count): in few instructions, as most rows of a long sequence may see nothing of a block.
inline Extent extent(const KeyRange& range, int64_t row, int64_t count) {
  if (!range.seen_begin) return {0, range.count};
  int32_t first = INT32_MAX, last = 0;
  for (int64_t i = row; i < row + count; ++i) {
    const int32_t begin = range.seen_begin[i], end = range.seen_end[i];
    first = smaller(first, begin < end ? begin : INT32_MAX);
    last = larger(last, begin < end ? end : 0);
  }
  return {first, last};
}

template <typename Level>
struct Masks : Vectors<Level> {
  using Base = Vectors<Level>;
  using Base::kWidth, Base::kLanes, Base::load, Base::store, Base::choose;
  using typename Base::Vector, typename Base::Integers, typename Base::Words;

  static constexpr int64_t kBackwardTile = 64;                              // keys of a tile in the backward pass
  static constexpr int64_t kBackwardKeys = longest_step(kBackwardTile, 2);  // room for them

  // Which keys of a range each lane sees, and what holds for all lanes. Lanes without a row do as the last row.
  template <int64_t lanes>
  struct Seen : Extent {
    alignas(64) int32_t begin[lanes], end[lanes];
    int64_t all_begin, all_end;  // every lane sees [all_begin, all_end)

    Seen(const KeyRange& range, int64_t row, int64_t count) {
      for (int64_t lane = 0; lane < lanes; ++lane) {
        const int64_t at = row + smaller(lane, count - 1);
        begin[lane] = range.seen_begin ? range.seen_begin[at] : 0;
        end[lane] = range.seen_end ? range.seen_end[at] : static_cast<int32_t>(range.count);
      }
      bound();
    }
    void bound() {
      first = all_end = INT32_MAX;
      last = all_begin = 0;
      for (int64_t lane = 0; lane < lanes; ++lane) {
        all_begin = larger<int64_t>(all_begin, begin[lane]);
        all_end = smaller<int64_t>(all_end, end[lane]);
        if (begin[lane] == end[lane]) continue;
        first = smaller<int64_t>(first, begin[lane]);
        last = larger<int64_t>(last, end[lane]);
      }
    }
    bool every(int64_t from, int64_t to) const { return all_begin <= from && all_end >= to; }
    // Whether no lane of one strip sees a key of [from, to).
    bool none_of_strip(int64_t strip, int64_t from, int64_t to) const {
      for (int64_t lane = strip * kLanes; lane < (strip + 1) * kLanes; ++lane)
        if (larger<int64_t>(begin[lane], from) < smaller<int64_t>(end[lane], to)) return false;
      return true;
    }
    STARTRAIL_INLINE Integers at(int64_t key, int64_t lane) const {
      const int32_t k = static_cast<int32_t>(key);
      return (load(begin + lane) <= k) & (load(end + lane) > k);
    }
  };

  // The value of a lane's or row's half of a pair.
  STARTRAIL_INLINE static Vector weight(const float* strip, int64_t key, int64_t lane) {
    return load(strip + key * kLanes + lane);
  }
  STARTRAIL_INLINE static Vector weight(const uint32_t* strip, int64_t key, int64_t lane) {
    const Words words = load(strip + key / 2 * kLanes + lane);
    return reinterpret_cast<Vector>(key % 2 == 0 ? words << 16 : words & 0xffff0000u);
  }

  // sum[dim][strip] += X^T x weights over seen pairs only: what product() does, for an X that has infinities or NaN,
  // which 0 times would spread to rows that do not see them. To the same bits, but for pairs, whose halves a
  // processor may add in another order.
  template <typename Word, typename Seen>
  static void product_of_seen(const Rows& x, bool bfloat16, int64_t at, int64_t keys, int64_t dim, const Word* weights,
                              const Seen& seen, int64_t key, int64_t lane, float* sum) {
    float fresh[kLargestDim * kLanes] = {};
    for (int64_t k = 0; k < keys; ++k) {
      float row[kLargestDim];
      read_row(x, bfloat16, at + k * x.row, dim, row);
      for (int64_t j = 0; j < kLanes; j += kWidth) {
        const Integers where = seen.at(key + k, lane + j);
        const Vector weight_of = weight(weights, k, j);
        for (int64_t d = 0; d < dim; ++d) {
          float* to = fresh + d * kLanes + j;
          store(to, choose(where, row[d] * weight_of + load(to), load(to)));
        }
      }
    }
    for (int64_t i = 0; i < dim * kLanes; i += kWidth) store(sum + i, load(sum + i) + load(fresh + i));
  }

  // c[keys][dim] += weights x X over seen pairs only, likewise; X is the rows of a backward tile.
  template <typename Word, typename Seen>
  static void product_of_seen(const Rows& x, bool bfloat16, int64_t at, int64_t rows, int64_t dim, const Word* weights,
                              const Seen& seen, int64_t key, int64_t keys, float* c, int64_t ldc) {
    float fresh[kBackwardKeys * kLargestDim] = {};
    for (int64_t q = 0; q < rows; ++q) {
      float row[kLargestDim];
      read_row(x, bfloat16, at + q * x.row, dim, row);
      for (int64_t k = larger(key, int64_t{seen.begin[q]}); k < smaller(key + keys, int64_t{seen.end[q]}); ++k) {
        float weight_of;
        const int64_t strip = q / kLanes, lane = q % kLanes;
        if constexpr (kPaired<Word>) {
          const Word word = weights[(strip * kBackwardKeys + k - key) * kLanes / 2 + lane / 2];
          weight_of = widen(static_cast<uint16_t>(lane % 2 == 0 ? word : word >> 16));
        } else {
          weight_of = weights[(strip * kBackwardKeys + k - key) * kLanes + lane];
        }
        for (int64_t d = 0; d < dim; ++d) fresh[(k - key) * kLargestDim + d] += weight_of * row[d];
      }
    }
    for (int64_t k = 0; k < keys; ++k)
      for (int64_t d = 0; d < dim; ++d) c[k * ldc + d] += fresh[k * kLargestDim + d];
  }
};

}  // namespace
}  // namespace startrail::cpu

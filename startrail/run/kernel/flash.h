// Flash attention on vectors, once for all processor levels; each level's file says how wide a vector is and, where the
// processor has one, what its bfloat16 dot product is called.
//
// Lanes are query rows, and every tile is transposed: scores are S[key][query] = K x Q^T, where an element of K is
// broadcast and a row of Q^T is a vector. So maximum, sum and rescaling of a row's softmax are vertical, K needs no
// transposing, and the weights come out as the vectors that the second product, O^T[dim][query] += V^T x P, wants. The
// running (out, lse) is the softmax state itself (maximum lse, sum 1): adding a block to it needs no merging.
//
// Matrices are made of words: a float, or a pair of bfloat16 along the dimension that a product sums over.
// Nothing of the standard library here: its inline functions, compiled for this level, could be linked in for all.
#pragma once

#include "startrail/run/kernel/flash_level.h"

namespace startrail::flash {
namespace {  // one copy per level

#define STARTRAIL_INLINE inline __attribute__((always_inline))

constexpr float kInfinity = __builtin_inff();

template <typename T>
STARTRAIL_INLINE T smaller(T a, T b) {
  return b < a ? b : a;
}
template <typename T>
STARTRAIL_INLINE T larger(T a, T b) {
  return a < b ? b : a;
}
STARTRAIL_INLINE int64_t round_up(int64_t n, int64_t step) { return (n + step - 1) / step * step; }

STARTRAIL_INLINE float widen(uint16_t bits) { return __builtin_bit_cast(float, static_cast<uint32_t>(bits) << 16); }
// To the nearest, ties to even; NaN stays NaN.
STARTRAIL_INLINE uint32_t narrow(float x) {
  const uint32_t bits = __builtin_bit_cast(uint32_t, x);
  if (x != x) return (bits >> 16) | 0x40;
  return (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
}

// What the bfloat16 dot product of a processor does, in plain operations: the twin on which a level with pairs is
// tested where the processor has none.
template <int width>
struct PlainPairs {
  typedef float Vector __attribute__((vector_size(4 * width)));
  typedef uint32_t Words __attribute__((vector_size(4 * width)));

  // sum + a's low halves x b's + a's high halves x b's.
  STARTRAIL_INLINE static Vector dot(uint32_t a, Words b, Vector sum) {
    const Vector low = reinterpret_cast<Vector>(b << 16), high = reinterpret_cast<Vector>(b & 0xffff0000u);
    return sum + widen(static_cast<uint16_t>(a)) * low + widen(static_cast<uint16_t>(a >> 16)) * high;
  }
  // Lane by lane (even, odd).
  STARTRAIL_INLINE static Words pair_rows(Vector even, Vector odd) {
    float low[width], high[width];
    uint32_t words[width];
    __builtin_memcpy(low, &even, sizeof(low));
    __builtin_memcpy(high, &odd, sizeof(high));
    for (int i = 0; i < width; ++i) words[i] = narrow(low[i]) | narrow(high[i]) << 16;
    Words made;
    __builtin_memcpy(&made, words, sizeof(made));
    return made;
  }
  // The lanes of `first`, then those of `second`, neighbours paired.
  STARTRAIL_INLINE static Words pair_lanes(Vector first, Vector second) {
    float lanes[2 * width];
    uint32_t words[width];
    __builtin_memcpy(lanes, &first, sizeof(first));
    __builtin_memcpy(lanes + width, &second, sizeof(second));
    for (int i = 0; i < width; ++i) words[i] = narrow(lanes[2 * i]) | narrow(lanes[2 * i + 1]) << 16;
    Words made;
    __builtin_memcpy(&made, words, sizeof(made));
    return made;
  }
};

// For transposing width x width numbers in registers, by halves of halves: at each step, what a pair of vectors
// exchanges so that both are sorted by one more bit of the column.
template <int width, int step>
struct Exchange {
  int32_t first[width] = {}, second[width] = {};
  constexpr Exchange() {
    for (int i = 0; i < width; ++i) {
      first[i] = (i & step) != 0 ? i - step + width : i;
      second[i] = (i & step) != 0 ? i + width : i + step;
    }
  }
};
template <int width, int step, typename Integers, typename Vector>
STARTRAIL_INLINE void exchange(Vector* rows) {
  if constexpr (step < width) {
    static constexpr Exchange<width, step> order;
    Integers first, second;
    __builtin_memcpy(&first, order.first, sizeof(first));
    __builtin_memcpy(&second, order.second, sizeof(second));
#pragma GCC unroll 16
    for (int i = 0; i < width; ++i) {
      if ((i & step) != 0) continue;
      const Vector a = rows[i], b = rows[i + step];
      rows[i] = __builtin_shuffle(a, b, first);
      rows[i + step] = __builtin_shuffle(a, b, second);
    }
    exchange<width, 2 * step, Integers>(rows);
  }
}

// Level says kWidth, kRows and kPairs; with pairs also dot(), pair_rows() and pair_lanes().
template <typename Level>
struct Flash {
  static constexpr int kWidth = Level::kWidth;   // floats in a vector
  static constexpr int kRows = Level::kRows;     // rows of the micro-kernel's tile, which is two vectors wide
  static constexpr int kLanes = 2 * kWidth;      // a strip: what the micro-kernel covers side by side
  static constexpr bool kPairs = Level::kPairs;  // bfloat16 is multiplied as such, otherwise widened
  static constexpr int64_t kForwardKeys = 128;   // keys of a tile in the forward pass
  static constexpr int64_t kPanelKeys = 512;     // keys packed at a time
  static constexpr int64_t kBackwardKeys = 64;   // keys of a tile in the backward pass
  static constexpr int64_t kBackwardRows = 64;   // its rows
  static constexpr int64_t kStrips = kBackwardRows / kLanes;
  static_assert(kBackwardRows % kLanes == 0 && kPanelKeys % kForwardKeys == 0 && kForwardKeys % 2 == 0);
  template <typename Word>
  static constexpr bool kPaired = !__is_same(Word, float);

  typedef float Vector __attribute__((vector_size(4 * kWidth)));
  typedef int32_t Integers __attribute__((vector_size(4 * kWidth)));
  typedef uint32_t Words __attribute__((vector_size(4 * kWidth)));
  typedef float Loose __attribute__((vector_size(4 * kWidth), aligned(4), may_alias));
  typedef int32_t LooseIntegers __attribute__((vector_size(4 * kWidth), aligned(4), may_alias));
  typedef uint32_t LooseWords __attribute__((vector_size(4 * kWidth), aligned(4), may_alias));

  STARTRAIL_INLINE static Vector load(const float* from) { return *reinterpret_cast<const Loose*>(from); }
  STARTRAIL_INLINE static void store(float* to, Vector v) { *reinterpret_cast<Loose*>(to) = v; }
  STARTRAIL_INLINE static Integers load(const int32_t* from) { return *reinterpret_cast<const LooseIntegers*>(from); }
  STARTRAIL_INLINE static Words load(const uint32_t* from) { return *reinterpret_cast<const LooseWords*>(from); }
  STARTRAIL_INLINE static void store(uint32_t* to, Words v) { *reinterpret_cast<LooseWords*>(to) = v; }
  STARTRAIL_INLINE static Vector all(float x) { return x - Vector{}; }
  STARTRAIL_INLINE static Vector choose(Integers where, Vector yes, Vector no) { return where ? yes : no; }

  // e^x for x below 88, to 1e-7; 0 below e^-88; NaN for NaN.
  STARTRAIL_INLINE static Vector exp(Vector x) {
    constexpr float kMagic = 12582912.f + 127.f;  // adding it rounds to a whole number and leaves that in the low bits
    x = choose(all(-88.f) > x, all(-88.f), x);
    const Vector shifted = x * 1.44269504f + kMagic, n = shifted - kMagic;
    const Vector r = x - n * 0.693359375f + n * 2.12194440e-4f;  // x - n ln 2; the first part of ln 2 is short: exact
    Vector p = all(1.381451746e-03f);                            // (e^r - 1 - r) / r^2, to 3e-9 of e^r
    p = p * r + 8.368755947e-03f;
    p = p * r + 4.166839184e-02f;
    p = p * r + 1.666652031e-01f;
    p = p * r + 4.999999343e-01f;
    p = (r * r) * p + r + 1.f;
    return p * reinterpret_cast<Vector>(reinterpret_cast<Integers>(shifted) << 23);
  }

  // Rounded before anything is subtracted from it: a row's largest score must equal its own maximum to the bit, or
  // scores of 10,000 would be off by thousandths.
  STARTRAIL_INLINE static Vector scaled_by(Vector score, float scale) { return __builtin_assoc_barrier(score * scale); }

  // ---- Products.

  // A(r, p) = a[r * row + p * column]; B(p, .) = b[p * ldb ...]. The sum over p may come in `outer` runs of `inner`, as
  // tiles of strips have it: a run of A starts `next` after the last.
  template <typename Word>
  struct Left {
    const Word* data;
    int64_t row, column, next;
  };
  template <typename Word>
  struct Right {
    const Word* data;
    int64_t ld;
  };

  STARTRAIL_INLINE static Vector multiply(float a, const float* b, Vector sum) { return a * load(b) + sum; }
  STARTRAIL_INLINE static Vector multiply(uint32_t a, const uint32_t* b, Vector sum) {
    return Level::dot(a, load(b), sum);
  }

  // c[rows][2 vectors] (+)= A x B.
  template <int rows, bool add, typename Word>
  STARTRAIL_INLINE static void micro(int64_t outer, int64_t inner, Left<Word> a, Right<Word> b, float* c, int64_t ldc) {
    Vector sum[rows][2];
#pragma GCC unroll 16
    for (int r = 0; r < rows; ++r) {
      sum[r][0] = add ? load(c + r * ldc) : Vector{};
      sum[r][1] = add ? load(c + r * ldc + kWidth) : Vector{};
    }
    for (int64_t run = 0; run < outer; ++run, a.data += a.next) {
      const Word* left = a.data;
#pragma GCC unroll 2
      for (int64_t p = 0; p < inner; ++p, left += a.column, b.data += b.ld) {
#pragma GCC unroll 16
        for (int r = 0; r < rows; ++r) {
          const Word x = left[r * a.row];
          sum[r][0] = multiply(x, b.data, sum[r][0]);
          sum[r][1] = multiply(x, b.data + kWidth, sum[r][1]);
        }
      }
    }
#pragma GCC unroll 16
    for (int r = 0; r < rows; ++r) {
      store(c + r * ldc, sum[r][0]);
      store(c + r * ldc + kWidth, sum[r][1]);
    }
  }

  template <int rows, bool add, typename Word>
  static void remainder(int64_t m, int64_t outer, int64_t inner, Left<Word> a, Right<Word> b, float* c, int64_t ldc) {
    if constexpr (rows > 0) {
      if (m == rows)
        micro<rows, add>(outer, inner, a, b, c, ldc);
      else
        remainder<rows - 1, add>(m, outer, inner, a, b, c, ldc);
    }
  }

  // c[m][strip] (+)= A x B.
  template <bool add, typename Word>
  static void product(int64_t m, int64_t outer, int64_t inner, Left<Word> a, Right<Word> b, float* c, int64_t ldc) {
    for (; m >= kRows; m -= kRows, a.data += kRows * a.row, c += kRows * ldc)
      micro<kRows, add>(outer, inner, a, b, c, ldc);
    remainder<kRows - 1, add>(m, outer, inner, a, b, c, ldc);
  }

  // ---- From the caller's rows to words. `at` is the first row's first element.

  static constexpr int64_t words_of(int64_t dim, float) { return dim; }
  static constexpr int64_t words_of(int64_t dim, uint32_t) { return (dim + 1) / 2; }

  STARTRAIL_INLINE static void read_row(const Rows& rows, bool bfloat16, int64_t at, int64_t dim, float* to) {
    if (bfloat16) {
      const uint16_t* from = static_cast<const uint16_t*>(rows.data) + at;
      for (int64_t d = 0; d < dim; ++d) to[d] = widen(from[d]);
    } else {
      __builtin_memcpy(to, static_cast<const float*>(rows.data) + at, static_cast<unsigned long>(dim * 4));
    }
  }
  STARTRAIL_INLINE static void read_row(const Rows& rows, bool, int64_t at, int64_t dim, uint32_t* to) {
    const uint16_t* from = static_cast<const uint16_t*>(rows.data) + at;
    __builtin_memcpy(to, from, static_cast<unsigned long>(dim / 2 * 4));  // the first of a pair is its low half
    if (dim % 2 != 0) to[dim / 2] = from[dim - 1];
  }

  // to[row][words along dim].
  template <typename Word>
  static void pack_across(const Rows& rows, bool bfloat16, int64_t at, int64_t count, int64_t dim, Word* to) {
    for (int64_t r = 0; r < count; ++r)
      read_row(rows, bfloat16, at + r * rows.row, dim, to + r * words_of(dim, Word{}));
  }

  // to[words along rows][ld], 0 where there is no row or no element. True when all values are finite.
  static bool pack_down(const Rows& rows, bool bfloat16, int64_t at, int64_t count, int64_t padded, int64_t dim,
                        float* to, int64_t ld) {
    for (int64_t r = 0; r < padded; ++r) {
      if (r < count) read_row(rows, bfloat16, at + r * rows.row, dim, to + r * ld);
      for (int64_t d = r < count ? dim : 0; d < ld; ++d) to[r * ld + d] = 0;
    }
    const int64_t all = padded * ld;
    float bad = 0;  // x - x is 0, or NaN
    Vector some_bad{};
    for (int64_t i = 0; i + kWidth <= all; i += kWidth) some_bad += load(to + i) - load(to + i);
    for (int64_t i = all / kWidth * kWidth; i < all; ++i) bad += to[i] - to[i];
    float lanes[kWidth];
    store(lanes, some_bad);
    for (float lane : lanes) bad += lane;
    return bad == 0;
  }
  static bool pack_down(const Rows& rows, bool, int64_t at, int64_t count, int64_t padded, int64_t dim, uint32_t* to,
                        int64_t ld) {
    int32_t bad = 0;
    for (int64_t r = 0; r < padded; r += 2, to += ld) {
      const uint16_t* even = static_cast<const uint16_t*>(rows.data) + at + r * rows.row;
      const uint16_t* odd = even + rows.row;
      const int64_t filled = r < count ? dim : 0;
      if (r + 1 < count)
        for (int64_t d = 0; d < dim; ++d) to[d] = even[d] | static_cast<uint32_t>(odd[d]) << 16;
      else
        for (int64_t d = 0; d < filled; ++d) to[d] = even[d];
      for (int64_t d = filled; d < ld; ++d) to[d] = 0;
      for (int64_t d = 0; d < ld; ++d) bad |= (to[d] & 0x7f80) == 0x7f80 || (to[d] & 0x7f800000) == 0x7f800000;
    }
    return bad == 0;
  }

  // to[c * to_ld + r] = from[r * from_ld + c].
  template <typename Word>
  static void transpose(const Word* from, int64_t from_ld, int64_t rows, int64_t columns, Word* to, int64_t to_ld) {
    const int64_t blocks = rows / kWidth * kWidth, strips = columns / kWidth * kWidth;
    for (int64_t r = 0; r < blocks; r += kWidth)
      for (int64_t c = 0; c < strips; c += kWidth) {
        Vector block[kWidth];
#pragma GCC unroll 16
        for (int i = 0; i < kWidth; ++i) block[i] = load(reinterpret_cast<const float*>(from + (r + i) * from_ld + c));
        exchange<kWidth, 1, Integers>(block);
#pragma GCC unroll 16
        for (int i = 0; i < kWidth; ++i) store(reinterpret_cast<float*>(to + (c + i) * to_ld + r), block[i]);
      }
    for (int64_t r = 0; r < rows; ++r)
      for (int64_t c = r < blocks ? strips : 0; c < columns; ++c) to[c * to_ld + r] = from[r * from_ld + c];
  }

  // A strip, to[words along dim][lane]; 0 in lanes without a row. `rows_at_hand` has room for a strip.
  template <typename Word>
  static void pack_strip(const Rows& rows, bool bfloat16, int64_t at, int64_t count, int64_t dim, Word* to,
                         Word* rows_at_hand) {
    const int64_t words = words_of(dim, Word{});
    const Word* from = rows_at_hand;
    int64_t ld = words;
    if (!kPaired<Word> && !bfloat16) {
      from = static_cast<const Word*>(rows.data) + at;
      ld = rows.row;
    } else {
      pack_across(rows, bfloat16, at, count, dim, rows_at_hand);
    }
    transpose(from, ld, count, words, to, kLanes);
    for (int64_t w = 0; count < kLanes && w < words; ++w)
      for (int64_t lane = count; lane < kLanes; ++lane) to[w * kLanes + lane] = Word{};
  }

  // ---- Masks.

  // Which keys of a range each lane sees, and what holds for all lanes. Lanes without a row do as the last row.
  template <int64_t lanes>
  struct Seen {
    alignas(64) int32_t begin[lanes], end[lanes];
    int64_t first, last;         // no lane sees a key outside [first, last)
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
    bool none(int64_t from, int64_t to) const { return last <= from || first >= to; }
    bool every(int64_t from, int64_t to) const { return all_begin <= from && all_end >= to; }
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
  // which 0 times would spread to rows that do not see them.
  template <typename Word, typename Seen>
  static void product_of_seen(const Rows& x, bool bfloat16, int64_t at, int64_t keys, int64_t dim, const Word* weights,
                              const Seen& seen, int64_t key, int64_t lane, float* sum) {
    for (int64_t k = 0; k < keys; ++k) {
      float row[kLargestDim];
      read_row(x, bfloat16, at + k * x.row, dim, row);
      for (int64_t j = 0; j < kLanes; j += kWidth) {
        const Integers where = seen.at(key + k, lane + j);
        const Vector weight_of = weight(weights, k, j);
        for (int64_t d = 0; d < dim; ++d) {
          float* to = sum + d * kLanes + j;
          store(to, choose(where, row[d] * weight_of + load(to), load(to)));
        }
      }
    }
  }

  // c[keys][dim] += weights x X over seen pairs only, likewise; X is the rows of a backward tile.
  template <typename Word, typename Seen>
  static void product_of_seen(const Rows& x, bool bfloat16, int64_t at, int64_t rows, int64_t dim, const Word* weights,
                              const Seen& seen, int64_t key, int64_t keys, float* c, int64_t ldc) {
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
        for (int64_t d = 0; d < dim; ++d) c[(k - key) * ldc + d] += weight_of * row[d];
      }
    }
  }

  // ---- Forward.

  struct Tile {  // of one strip of query rows
    int64_t head, row, count;
  };

  template <typename Word>
  static void forward(const Forward& work, int64_t begin, int64_t end, void* scratch) {
    const Problem& p = work.problem;
    const int64_t dim = p.dim, words = words_of(dim, Word{});
    constexpr int64_t pairing = kPaired<Word> ? 2 : 1;
    const int64_t tiles_a_head = (end - begin + kLanes - 1) / kLanes, tiles = tiles_a_head * p.heads;
    char* free = static_cast<char*>(scratch);
    const auto take = [&free](int64_t count) {
      void* taken = free;
      free += round_up(count * 4, 64);
      return taken;
    };
    Word* const keys = static_cast<Word*>(take(kPanelKeys * words));
    Word* const values = static_cast<Word*>(take(kPanelKeys * dim));
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
      for (int64_t panel = 0; panel < range.count; panel += kPanelKeys) {
        const int64_t panel_end = smaller(range.count, panel + kPanelKeys), in_panel = panel_end - panel;
        const int64_t key_at = (range.begin + panel) * p.k.row, value_at = (range.begin + panel) * p.v.row;
        bool packed = false, finite = true;
        for (int64_t t = 0; t < tiles; ++t) {
          const Tile tile = tile_at(t);
          const Seen<kLanes> seen(range, tile.row, tile.count);
          if (seen.none(panel, panel_end)) continue;
          if (!packed) {
            pack_across(p.k, p.bfloat16, key_at, in_panel, dim, keys);
            finite = pack_down(p.v, p.bfloat16, value_at, in_panel, round_up(in_panel, pairing), dim, values, dim);
            packed = true;
          }
          if (work.pack_only) break;
          // Only keys that some row sees, from an even one because of pairs.
          const int64_t last = smaller(in_panel, seen.last - panel);
          for (int64_t k = larger<int64_t>(0, seen.first - panel) / 2 * 2; k < last; k += kForwardKeys) {
            const int64_t count = smaller(kForwardKeys, last - k), key = panel + k;
            product<false>(count, 1, words, Left<Word>{keys + k * words, words, 1, 0},
                           Right<Word>{queries + t * words * kLanes, kLanes}, scores, kLanes);
            const bool partial = !seen.every(key, key + count);
            float* const out = outs + t * dim * kLanes;
            soften(scores, weights, count, p.scale, partial, seen, key, tops + t * kLanes, sums + t * kLanes, out, dim);
            if (partial && !finite)
              product_of_seen(p.v, p.bfloat16, value_at + k * p.v.row, count, dim, weights, seen, key, 0, out);
            else
              product<true>(dim, 1, (count + pairing - 1) / pairing, Left<Word>{values + k / pairing * dim, 1, dim, 0},
                            Right<Word>{weights, kLanes}, out, kLanes);
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
      Vector sum = load(sums + j) * fade;
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
      store(sums + j, sum);
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
    Word* const keys = static_cast<Word*>(take(n * words));
    Word* const values = static_cast<Word*>(take(n * words));
    Word* keys_down = keys;
    float* const dkeys = static_cast<float*>(take(n * padded));
    float* const dvalues = static_cast<float*>(take(n * padded));
    Word* const queries = static_cast<Word*>(take(kBackwardRows * words));
    Word* const douts = static_cast<Word*>(take(kBackwardRows * words));
    Word* const queries_down = static_cast<Word*>(take(kBackwardRows * padded));
    Word* const douts_down = static_cast<Word*>(take(kBackwardRows * padded));
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
      keys_down = static_cast<Word*>(take(round_up(n, 2) * dim / 2));
    } else {
      tile.weights = tile.scores;
      tile.dscores_left = tile.dscores_right = tile.dweights;
    }

    const int64_t key_at = (range.begin + begin) * p.k.row, value_at = (range.begin + begin) * p.v.row;
    pack_across(p.v, p.bfloat16, value_at, n, dim, values);
    if constexpr (kPaired<Word>) pack_across(p.k, p.bfloat16, key_at, n, dim, keys);
    const bool finite_keys = pack_down(p.k, p.bfloat16, key_at, n, round_up(n, pairing), dim, keys_down, dim);
    for (int64_t i = 0; i < n * padded; ++i) dkeys[i] = dvalues[i] = 0;

    for (int64_t head = 0; head < p.heads; ++head)
      for (int64_t row = 0; row < p.queries; row += kBackwardRows) {
        const int64_t rows = smaller(kBackwardRows, p.queries - row);
        alignas(64) float lse[kBackwardRows], delta[kBackwardRows];
        Seen<kBackwardRows> seen(range, row, rows);
        bool blind = false;
        for (int64_t i = 0; i < kBackwardRows; ++i) {
          const bool has = i < rows;
          lse[i] = has ? work.lse.data[head * work.lse.head + (row + i) * work.lse.row] : 0;
          delta[i] = has ? work.delta.data[head * work.delta.head + (row + i) * work.delta.row] * p.scale : 0;
          if (lse[i] != -kInfinity) continue;
          lse[i] = 0;
          seen.begin[i] = seen.end[i] = 0;
          blind = true;
        }
        if (blind) seen.bound();
        const bool any = !seen.none(begin, end);
        const int64_t query_at = head * p.q.head + row * p.q.row, dout_at = head * work.dout.head + row * work.dout.row;
        if (any) {
          for (int64_t s = 0; s < kStrips; ++s) {
            const int64_t in_strip = larger<int64_t>(0, smaller<int64_t>(kLanes, rows - s * kLanes));
            pack_strip(p.q, p.bfloat16, query_at + s * kLanes * p.q.row, in_strip, dim, queries + s * words * kLanes,
                       at_hand);
            pack_strip(work.dout, p.bfloat16, dout_at + s * kLanes * work.dout.row, in_strip, dim,
                       douts + s * words * kLanes, at_hand);
          }
          const bool finite_queries =
              pack_down(p.q, p.bfloat16, query_at, rows, kBackwardRows, dim, queries_down, padded);
          const bool finite_douts =
              pack_down(work.dout, p.bfloat16, dout_at, rows, kBackwardRows, dim, douts_down, padded);
          for (int64_t i = 0; i < kBackwardRows * dim; ++i) dqueries[i] = 0;
          for (int64_t k = 0; k < n; k += kBackwardKeys) {
            const int64_t count = smaller(kBackwardKeys, n - k), key = begin + k;
            if (seen.none(key, key + count)) continue;
            const bool partial = !seen.every(key, key + count);
            for (int64_t s = 0; s < kStrips; ++s) {
              product<false>(count, 1, words, Left<Word>{keys + k * words, words, 1, 0},
                             Right<Word>{queries + s * words * kLanes, kLanes},
                             tile.scores + s * kBackwardKeys * kLanes, kLanes);
              product<false>(count, 1, words, Left<Word>{values + k * words, words, 1, 0},
                             Right<Word>{douts + s * words * kLanes, kLanes},
                             tile.dweights + s * kBackwardKeys * kLanes, kLanes);
            }
            differentiate(tile, count, p.scale, partial, seen, key, lse, delta);
            constexpr int64_t kWordsOfLanes = kLanes / pairing;
            const auto sum_over_queries = [&](const Word* left, const Word* right, float* c) {
              for (int64_t d = 0; d < padded; d += kLanes)
                product<true>(count, kStrips, kWordsOfLanes,
                              Left<Word>{left, kWordsOfLanes, 1, kBackwardKeys * kWordsOfLanes},
                              Right<Word>{right + d, padded}, c + k * padded + d, padded);
            };
            if (partial && !finite_douts)
              product_of_seen(work.dout, p.bfloat16, dout_at, rows, dim, tile.weights, seen, key, count,
                              dvalues + k * padded, padded);
            else
              sum_over_queries(tile.weights, douts_down, dvalues);
            if (partial && !finite_queries)
              product_of_seen(p.q, p.bfloat16, query_at, rows, dim, tile.dscores_left, seen, key, count,
                              dkeys + k * padded, padded);
            else
              sum_over_queries(tile.dscores_left, queries_down, dkeys);
            for (int64_t s = 0; s < kStrips; ++s) {
              const Word* const right = tile.dscores_right + s * kBackwardKeys / pairing * kLanes;
              float* const to = dqueries + s * dim * kLanes;
              if (partial && !finite_keys)
                product_of_seen(p.k, p.bfloat16, key_at + k * p.k.row, count, dim, right, seen, key, s * kLanes, to);
              else
                product<true>(dim, 1, (count + pairing - 1) / pairing,
                              Left<Word>{keys_down + k / pairing * dim, 1, dim, 0}, Right<Word>{right, kLanes}, to,
                              kLanes);
            }
          }
        }
        work.turn(work.context, head, row / kBackwardRows, true);
        for (int64_t i = 0; any && i < rows; i += kLanes) {
          const int64_t in_strip = smaller<int64_t>(kLanes, rows - i);
          transpose(dqueries + i * dim, kLanes, dim, in_strip, sum_at_hand, dim);
          for (int64_t lane = 0; lane < in_strip; ++lane) {
            float* const to = work.dq.data + head * work.dq.head + (row + i + lane) * work.dq.row;
            for (int64_t d = 0; d < dim; ++d) to[d] += sum_at_hand[lane * dim + d];
          }
        }
        work.turn(work.context, head, row / kBackwardRows, false);
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

  // Scores and dweights of a tile to weights and dscores.
  template <typename Word, typename Seen>
  static void differentiate(const BackwardTile<Word>& tile, int64_t count, float scale, bool partial, const Seen& seen,
                            int64_t key, const float* lse, const float* delta) {
    for (int64_t s = 0; s < kStrips; ++s) {
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

  // ---- What flash_level.h wants.

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
    return 4 * (2 * kPanelKeys * dim + 2 * kForwardKeys * kLanes + rows * (2 * dim + 2) + kLanes * dim) + 64 * 16;
  }
  static int64_t backward_scratch_bytes(int64_t dim, int64_t keys) {
    const int64_t padded = round_up(dim, kLanes);
    return 4 * (keys * (3 * dim + 2 * padded) + kBackwardRows * (3 * dim + 2 * padded + 4 * kBackwardKeys) +
                2 * kLanes * dim) +
           64 * 16;
  }
  static const startrail::flash::Level* level(const char* name) {
    static const startrail::flash::Level made{
        name, kLanes, kBackwardRows, run_forward, forward_scratch_bytes, run_backward, backward_scratch_bytes};
    return &made;
  }
};

#undef STARTRAIL_INLINE

}  // namespace
}  // namespace startrail::flash

// The vectors of a processor level and what is made of them: arithmetic, products of small matrices, and bringing rows
// into the layout those want. For the files compiled once per level (flash.h, rows.h); each level's file says how wide
// a vector is and, where the processor has one, what its bfloat16 dot product is called.
//
// Matrices are made of words: a float, or a pair of bfloat16 along the dimension that a product sums over.
// Nothing of the standard library here: its inline functions, compiled for this level, could be linked in for all.
#pragma once

#include "startrail/run/kernel/cpu/level.h"

namespace startrail::cpu {
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

STARTRAIL_INLINE float widen(uint16_t bits) { return __builtin_bit_cast(float, static_cast<uint32_t>(bits) << 16); }
// To the nearest, ties to even; NaN stays NaN.
STARTRAIL_INLINE uint32_t narrow(float x) {
  const uint32_t bits = __builtin_bit_cast(uint32_t, x);
  if (x != x) return (bits >> 16) | 0x40;
  return (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
}

// Hands out scratch memory, in numbers of 4 bytes and whole cache lines.
struct Taker {
  char* free;
  void* operator()(int64_t count) {
    void* const taken = free;
    free += round_up(count * 4, 64);
    return taken;
  }
};

// What the bfloat16 dot product of a processor does, in plain operations (but for denormals, which a processor takes
// for 0): the twin on which a level with pairs is tested where the processor has none.
template <int width>
struct PlainPairs {
  typedef float Vector __attribute__((vector_size(4 * width)));
  typedef uint32_t Words __attribute__((vector_size(4 * width)));

  // sum + a's high halves x b's + a's low halves x b's: the order of AVX-512 BF16.
  STARTRAIL_INLINE static Vector dot(uint32_t a, Words b, Vector sum) {
    const Vector low = reinterpret_cast<Vector>(b << 16), high = reinterpret_cast<Vector>(b & 0xffff0000u);
    return sum + widen(static_cast<uint16_t>(a >> 16)) * high + widen(static_cast<uint16_t>(a)) * low;
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

template <typename Word>
constexpr bool kPaired = !__is_same(Word, float);

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

// From the caller's rows to words; `at` is the first row's first element.
constexpr int64_t words_of(int64_t dim, float) { return dim; }
constexpr int64_t words_of(int64_t dim, uint32_t) { return (dim + 1) / 2; }

STARTRAIL_INLINE void read_row(const Rows& rows, bool bfloat16, int64_t at, int64_t dim, float* to) {
  if (bfloat16) {
    const uint16_t* from = static_cast<const uint16_t*>(rows.data) + at;
    for (int64_t d = 0; d < dim; ++d) to[d] = widen(from[d]);
  } else {
    __builtin_memcpy(to, static_cast<const float*>(rows.data) + at, static_cast<unsigned long>(dim * 4));
  }
}
STARTRAIL_INLINE void read_row(const Rows& rows, bool, int64_t at, int64_t dim, uint32_t* to) {
  const uint16_t* from = static_cast<const uint16_t*>(rows.data) + at;
  __builtin_memcpy(to, from, static_cast<unsigned long>(dim / 2 * 4));  // the first of a pair is its low half
  if (dim % 2 != 0) to[dim / 2] = from[dim - 1];
}

// Rows that are dense floats are words already, and need no packing.
STARTRAIL_INLINE const float* in_place(const Rows& rows, bool bfloat16, int64_t at, int64_t ld, const float*) {
  return !bfloat16 && rows.row == ld ? static_cast<const float*>(rows.data) + at : nullptr;
}
STARTRAIL_INLINE const uint32_t* in_place(const Rows&, bool, int64_t, int64_t, const uint32_t*) { return nullptr; }

// [row][words along dim], in `room` or in place.
template <typename Word>
const Word* pack_across(const Rows& rows, bool bfloat16, int64_t at, int64_t count, int64_t dim, Word* room) {
  if (const Word* there = in_place(rows, bfloat16, at, words_of(dim, Word{}), room)) return there;
  for (int64_t r = 0; r < count; ++r)
    read_row(rows, bfloat16, at + r * rows.row, dim, room + r * words_of(dim, Word{}));
  return room;
}

// Rows packed along the other dimension, and whether all values are finite, if that was asked.
template <typename Word>
struct Down {
  const Word* data;
  bool finite;
};

// Level says kWidth, kRows and kPairs; with pairs also dot(), pair_rows() and pair_lanes().
template <typename Level>
struct Vectors {
  static constexpr int kWidth = Level::kWidth;   // floats in a vector
  static constexpr int kRows = Level::kRows;     // rows of the micro-kernel's tile, which is two vectors wide
  static constexpr int kLanes = 2 * kWidth;      // a strip: what the micro-kernel covers side by side
  static constexpr bool kPairs = Level::kPairs;  // bfloat16 is multiplied as such, otherwise widened

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

  STARTRAIL_INLINE static Vector multiply(float a, const float* b, Vector sum) { return a * load(b) + sum; }
  STARTRAIL_INLINE static Vector multiply(uint32_t a, const uint32_t* b, Vector sum) {
    return Level::dot(a, load(b), sum);
  }

  // c[rows][2 vectors] (+)= A x B. What is there is added last: a sum over very many rows is then made of sums over a
  // tile each, whose rounding errors do not add up as far.
  template <int rows, bool add, typename Word>
  STARTRAIL_INLINE static void micro(int64_t outer, int64_t inner, Left<Word> a, Right<Word> b, float* c, int64_t ldc) {
    Vector sum[rows][2];
#pragma GCC unroll 16
    for (int r = 0; r < rows; ++r) sum[r][0] = sum[r][1] = Vector{};
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
      store(c + r * ldc, add ? load(c + r * ldc) + sum[r][0] : sum[r][0]);
      store(c + r * ldc + kWidth, add ? load(c + r * ldc + kWidth) + sum[r][1] : sum[r][1]);
    }
  }

  template <int rows, bool add, typename Word>
  static void few_rows(int64_t m, int64_t outer, int64_t inner, Left<Word> a, Right<Word> b, float* c, int64_t ldc) {
    if constexpr (rows > 0) {
      if (m == rows)
        micro<rows, add>(outer, inner, a, b, c, ldc);
      else
        few_rows<rows - 1, add>(m, outer, inner, a, b, c, ldc);
    }
  }
  // A group of at most kRows rows. Nearly all have kRows: these are inlined.
  template <bool add, typename Word>
  STARTRAIL_INLINE static void multiply_group(int64_t m, int64_t outer, int64_t inner, Left<Word> a, Right<Word> b,
                                              float* c, int64_t ldc) {
    if (m == kRows)
      micro<kRows, add>(outer, inner, a, b, c, ldc);
    else
      few_rows<kRows - 1, add>(m, outer, inner, a, b, c, ldc);
  }

  // Rows go through the micro-kernel in groups of kRows. What is left goes in two halves with the group before: one or
  // two rows have too few sums to keep the multipliers busy.
  template <typename Group>
  STARTRAIL_INLINE static void for_groups(int64_t m, const Group& group) {
    for (int64_t from = 0; from < m;) {
      const int64_t left = m - from, rows = left == kRows || left >= 2 * kRows ? kRows
                                            : left > kRows                     ? (left + 1) / 2
                                                                               : left;
      group(from, rows);
      from += rows;
    }
  }

  // c[m][strip] (+)= A x B.
  template <bool add, typename Word>
  static void product(int64_t m, int64_t outer, int64_t inner, Left<Word> a, Right<Word> b, float* c, int64_t ldc) {
    for_groups(
        m, [&](int64_t from, int64_t rows) __attribute__((always_inline)) {
          multiply_group<add>(rows, outer, inner, Left<Word>{a.data + from * a.row, a.row, a.column, a.next}, b,
                              c + from * ldc, ldc);
        });
  }
  // c[m][strip] += A x B with an A of pack_groups() that is `length` words long, of which [begin, begin + inner) count.
  template <typename Word>
  static void product_of_groups(int64_t m, const Word* a, int64_t length, int64_t begin, int64_t inner, Right<Word> b,
                                float* c, int64_t ldc) {
    for_groups(
        m, [&](int64_t from, int64_t rows) __attribute__((always_inline)) {
          multiply_group<true>(rows, 1, inner, Left<Word>{a + from * length + begin * rows, 1, rows, 0}, b,
                               c + from * ldc, ldc);
        });
  }

  // ---- Packing.

  static bool all_finite(const float* x, int64_t count) {
    float bad = 0;  // x - x is 0, or NaN
    Vector some_bad{};
    for (int64_t i = 0; i + kWidth <= count; i += kWidth) some_bad += load(x + i) - load(x + i);
    for (int64_t i = count / kWidth * kWidth; i < count; ++i) bad += x[i] - x[i];
    float lanes[kWidth];
    store(lanes, some_bad);
    for (float lane : lanes) bad += lane;
    return bad == 0;
  }

  // [words along rows][ld], 0 where there is no row or no element; in `room` or in place.
  static Down<float> pack_down(const Rows& rows, bool bfloat16, int64_t at, int64_t count, int64_t padded, int64_t dim,
                               float* room, int64_t ld, bool check) {
    const float* there = count == padded && dim == ld ? in_place(rows, bfloat16, at, ld, room) : nullptr;
    for (int64_t r = 0; !there && r < padded; ++r) {
      if (r < count) read_row(rows, bfloat16, at + r * rows.row, dim, room + r * ld);
      for (int64_t d = r < count ? dim : 0; d < ld; ++d) room[r * ld + d] = 0;
    }
    const float* const packed = there ? there : room;
    return {packed, !check || all_finite(packed, padded * ld)};
  }
  static Down<uint32_t> pack_down(const Rows& rows, bool, int64_t at, int64_t count, int64_t padded, int64_t dim,
                                  uint32_t* const room, int64_t ld, bool) {
    int32_t bad = 0;
    uint32_t* to = room;
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
    return {room, bad == 0};
  }

  // The same by groups of elements, [group][words along rows][elements of the group], so that a product over rows reads
  // on without a gap. `row_at_hand` has room for a row. True when all values are finite, if that was asked.
  template <typename Word>
  static bool pack_groups(const Rows& rows, bool bfloat16, int64_t at, int64_t count, int64_t dim, Word* to,
                          Word* row_at_hand, bool check) {
    constexpr int64_t pairing = kPaired<Word> ? 2 : 1;
    const int64_t length = (count + pairing - 1) / pairing;
    bool finite = true;
    for (int64_t w = 0; w < length; ++w) {
      const Down<Word> row = pack_down(rows, bfloat16, at + w * pairing * rows.row,
                                       smaller(pairing, count - w * pairing), pairing, dim, row_at_hand, dim, check);
      finite &= row.finite;
      for_groups(
          dim, [&](int64_t from, int64_t n) __attribute__((always_inline)) {
            Word* const group = to + from * length + w * n;
            if (n == kRows)
              __builtin_memcpy(group, row.data + from, sizeof(Word) * kRows);
            else
              for (int64_t i = 0; i < n; ++i) group[i] = row.data[from + i];
          });
    }
    return finite;
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
};

}  // namespace
}  // namespace startrail::cpu

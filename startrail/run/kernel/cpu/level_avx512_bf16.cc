// AVX-512 with BF16: a dot product of bfloat16 pairs does twice the work of a multiply-add.
#include "startrail/run/kernel/cpu/level.h"

#ifdef __AVX512BF16__
#include <immintrin.h>

#include "startrail/run/kernel/cpu/flash.h"

namespace startrail::cpu {
namespace {

struct Avx512Bf16 {
  static constexpr int kWidth = 16, kRows = 8;
  static constexpr bool kPairs = true;

  typedef PlainPairs<16>::Vector Vector;
  typedef PlainPairs<16>::Words Words;

  static inline __attribute__((always_inline)) Vector dot(uint32_t a, Words b, Vector sum) {
    return _mm512_dpbf16_ps(sum, (__m512bh)_mm512_set1_epi32(static_cast<int>(a)), (__m512bh)b);
  }
  static inline __attribute__((always_inline)) Words pair_lanes(Vector first, Vector second) {
    return (Words)_mm512_cvtne2ps_pbh(second, first);
  }
  static inline __attribute__((always_inline)) Words pair_rows(Vector even, Vector odd) {
    const __m512i order = _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23, 7, 22, 6,
                                           21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
    return (Words)_mm512_permutexvar_epi16(order, (__m512i)pair_lanes(even, odd));
  }
};

}  // namespace

const Level* avx512_bf16_level() { return Flash<Avx512Bf16>::level("avx512bf16"); }

}  // namespace startrail::cpu
#else
const startrail::cpu::Level* startrail::cpu::avx512_bf16_level() { return nullptr; }
#endif

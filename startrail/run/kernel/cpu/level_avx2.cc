// AVX2 with FMA: 16 registers of 8 floats hold 6 x 2 vectors of sums, a broadcast and what it is multiplied with.
#include "startrail/run/kernel/cpu/level.h"

#ifdef __AVX2__
#include "startrail/run/kernel/cpu/flash.h"

namespace startrail::cpu {
namespace {

struct Avx2 {
  static constexpr int kWidth = 8, kRows = 6;
  static constexpr bool kPairs = false;
};

}  // namespace

const Level* avx2_level() { return Flash<Avx2>::level("avx2"); }

}  // namespace startrail::cpu
#else
const startrail::cpu::Level* startrail::cpu::avx2_level() { return nullptr; }
#endif

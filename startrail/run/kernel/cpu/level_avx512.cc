// AVX-512: 32 registers of 16 floats.
#include "startrail/run/kernel/cpu/level.h"

#ifdef __AVX512F__
#include "startrail/run/kernel/cpu/flash.h"

namespace startrail::cpu {
namespace {

struct Avx512 {
  static constexpr int kWidth = 16, kRows = 8;
  static constexpr bool kPairs = false;
};

}  // namespace

const Level* avx512_level() { return Flash<Avx512>::level("avx512"); }

}  // namespace startrail::cpu
#else
const startrail::cpu::Level* startrail::cpu::avx512_level() { return nullptr; }
#endif

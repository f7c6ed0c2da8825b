// Vectors of four floats, which every processor in use has or a compiler makes of what it has.
#include "startrail/run/kernel/cpu/flash.h"

namespace startrail::cpu {
namespace {

struct Portable {
  static constexpr int kWidth = 4, kRows = 4;
  static constexpr bool kPairs = false;
};

}  // namespace

const Level* portable_level() { return Flash<Portable>::level("portable"); }

}  // namespace startrail::cpu

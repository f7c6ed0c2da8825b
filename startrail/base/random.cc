#include "startrail/base/random.h"

#include <bit>
#include <cmath>
#include <numbers>
#include <utility>

#include "startrail/base/error.h"

namespace startrail {
namespace {

constexpr uint64_t kGolden = 0x9e3779b97f4a7c15;

// The finalizer of splitmix64 (Steele, Lea, Flood 2014).
uint64_t finish(uint64_t value) {
  value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9;
  value = (value ^ (value >> 27)) * 0x94d049bb133111eb;
  return value ^ (value >> 31);
}

}  // namespace

uint64_t mix(uint64_t a, uint64_t b) { return finish(finish(a + kGolden) + b + kGolden); }

double normal(uint64_t key, uint64_t index) {
  const uint64_t first = index / 2 * 2;
  const double radius = std::sqrt(-2 * std::log(uniform(key, first) + 0x1p-54));
  const double angle = 2 * std::numbers::pi * uniform(key, first + 1);
  return radius * (index == first ? std::cos(angle) : std::sin(angle));
}

// A Feistel network permutes the numbers of 2 x `half` bits, fewer than 4 x count of them. Walking on along its cycle
// until a number below `count` comes makes that a permutation of those (Black and Rogaway 2002).
int64_t shuffled(int64_t index, int64_t count, uint64_t seed, int64_t epoch) {
  STARTRAIL_CHECK(index >= 0 && index < count, "index ", index, " of ", count);
  constexpr uint64_t kRounds = 12;  // with fewer some orders of a handful come 20% too often
  const int half = static_cast<int>((std::bit_width(static_cast<uint64_t>(count - 1)) + 1) / 2);
  const uint64_t mask = (uint64_t{1} << half) - 1;
  const uint64_t key = mix(mix(seed, static_cast<uint64_t>(epoch)), static_cast<uint64_t>(count));
  uint64_t value = static_cast<uint64_t>(index);
  do {
    uint64_t left = value >> half, right = value & mask;
    for (uint64_t round = 0; round < kRounds; ++round) {
      left ^= mix(key + round, right) & mask;
      std::swap(left, right);
    }
    value = left << half | right;
  } while (value >= static_cast<uint64_t>(count));
  return static_cast<int64_t>(value);
}

}  // namespace startrail

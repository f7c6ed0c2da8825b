// Chance that needs no memory: a pseudo-random permutation of [0, count) from a seed, the order of an epoch, computable
// at any place, which is what makes a run resumable to the token; and numbers that depend on their place only.
#pragma once

#include <cstdint>

namespace startrail {

// Where `index` lands, in [0, count). A bijection for every (seed, epoch).
int64_t shuffled(int64_t index, int64_t count, uint64_t seed, int64_t epoch);

// A well-mixed 64-bit number from numbers.
uint64_t mix(uint64_t a, uint64_t b);

// A number in [0, 1): one of an endless row that the key has.
inline double uniform(uint64_t key, uint64_t index) { return static_cast<double>(mix(key, index) >> 11) * 0x1p-53; }
// A normal number likewise: Box and Muller's, two from two neighbours of that row.
double normal(uint64_t key, uint64_t index);

}  // namespace startrail

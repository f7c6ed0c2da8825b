// A pseudo-random permutation of [0, count) from a seed that needs no memory: the order of an epoch, computable at any
// place, which is what makes a run resumable to the token.
#pragma once

#include <cstdint>

namespace startrail {

// Where `index` lands, in [0, count). A bijection for every (seed, epoch).
int64_t shuffled(int64_t index, int64_t count, uint64_t seed, int64_t epoch);

// A well-mixed 64-bit number from numbers.
uint64_t mix(uint64_t a, uint64_t b);

}  // namespace startrail

// Whole numbers.
#pragma once

#include <vector>

namespace startrail {

// All divisors of `value`, ascending.
std::vector<int> divisors(int value);

}  // namespace startrail

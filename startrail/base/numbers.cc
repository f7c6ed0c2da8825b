#include "startrail/base/numbers.h"

namespace startrail {

std::vector<int> divisors(int value) {
  std::vector<int> all;
  for (int d = 1; d <= value; ++d)
    if (value % d == 0) all.push_back(d);
  return all;
}

}  // namespace startrail

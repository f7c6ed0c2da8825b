// The least, the middle and the most of timed rounds.
#pragma once

#include <algorithm>
#include <vector>

namespace startrail::cli {

struct Spread {
  double min = 0, median = 0, max = 0;
};

inline Spread spread(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const size_t half = values.size() / 2;
  return {values.front(), values.size() % 2 ? values[half] : (values[half - 1] + values[half]) / 2, values.back()};
}

}  // namespace startrail::cli

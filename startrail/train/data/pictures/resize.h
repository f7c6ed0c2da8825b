// Brings pictures to a size, row by row as they are decoded: an antialiasing triangle filter when they shrink, linear
// interpolation when they grow. Each output row is a sum over input rows in a fixed order, so a part of a picture has
// exactly the numbers of the whole. Used by pictures.cc.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace startrail {

// How one axis is resampled: output i is the sum over k < counts[i] of weights[i * taps + k] x input firsts[i] + k.
struct Filter {
  int64_t taps = 0;
  std::vector<int64_t> firsts, counts;
  std::vector<float> weights;  // those of one output sum to 1

  int64_t first(int64_t output) const { return firsts[static_cast<size_t>(output)]; }
  int64_t end(int64_t output) const { return first(output) + counts[static_cast<size_t>(output)]; }
  const float* weights_of(int64_t output) const { return weights.data() + output * taps; }
};

// Outputs [first, end) of an axis of `inputs` pixels scaled by 1 / `ratio`.
Filter make_filter(int64_t inputs, double ratio, int64_t first, int64_t end);

struct Filters {
  Filter down, across;
};

// Stretched to the size.
Filters stretch(int64_t height, int64_t width, int64_t to_height, int64_t to_width);

// Scaled so that it just covers the size, then its middle.
Filters cover(int64_t height, int64_t width, int64_t to_height, int64_t to_width);

// One row of `channels` interleaved bytes to `out` [channels, outputs].
void resize_row(const Filter& across, const uint8_t* row, int64_t channels, float* out);

}  // namespace startrail

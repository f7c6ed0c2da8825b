#include "startrail/train/data/pictures/resize.h"

#include <algorithm>
#include <cmath>

namespace startrail {

Filter make_filter(int64_t inputs, double ratio, int64_t first, int64_t end) {
  const double reach = std::max(ratio, 1.0);  // of the triangle, in inputs to either side
  const auto outputs = static_cast<size_t>(end - first);
  Filter filter;
  filter.taps = static_cast<int64_t>(std::ceil(2 * reach)) + 1;
  filter.firsts.resize(outputs);
  filter.counts.resize(outputs);
  filter.weights.resize(outputs * static_cast<size_t>(filter.taps));
  for (size_t i = 0; i < outputs; ++i) {
    const double centre = (static_cast<double>(first) + static_cast<double>(i) + 0.5) * ratio;
    const auto weight = [&](int64_t input) {
      return std::max(0.0, 1 - std::abs(static_cast<double>(input) + 0.5 - centre) / reach);
    };
    // Inputs beyond the edge do not count. At least the nearest one is there.
    const int64_t nearest = std::clamp<int64_t>(static_cast<int64_t>(std::floor(centre)), 0, inputs - 1);
    int64_t begin = nearest, after = nearest + 1;
    while (begin > 0 && weight(begin - 1) > 0) --begin;
    while (after < inputs && weight(after) > 0) ++after;
    double sum = 0;
    for (int64_t input = begin; input < after; ++input) sum += weight(input);
    float* weights = filter.weights.data() + static_cast<int64_t>(i) * filter.taps;
    for (int64_t input = begin; input < after; ++input)
      weights[input - begin] = sum > 0 ? static_cast<float>(weight(input) / sum) : 1.0f;
    filter.firsts[i] = begin;
    filter.counts[i] = after - begin;
  }
  return filter;
}

Filters stretch(int64_t height, int64_t width, int64_t to_height, int64_t to_width) {
  return {make_filter(height, static_cast<double>(height) / static_cast<double>(to_height), 0, to_height),
          make_filter(width, static_cast<double>(width) / static_cast<double>(to_width), 0, to_width)};
}

Filters cover(int64_t height, int64_t width, int64_t to_height, int64_t to_width) {
  const double ratio = std::min(static_cast<double>(height) / static_cast<double>(to_height),
                                static_cast<double>(width) / static_cast<double>(to_width));
  // The middle begins at a whole pixel of the scaled picture, so that one of the right scale is not blurred.
  const auto middle = [&](int64_t from, int64_t to) {
    const double scaled = static_cast<double>(from) / ratio;
    const auto first = std::max<int64_t>(0, static_cast<int64_t>(std::floor((scaled - static_cast<double>(to)) / 2)));
    return make_filter(from, ratio, first, first + to);
  };
  return {middle(height, to_height), middle(width, to_width)};
}

void resize_row(const Filter& across, const uint8_t* row, int64_t channels, float* out) {
  const auto outputs = static_cast<int64_t>(across.firsts.size());
  for (int64_t x = 0; x < outputs; ++x) {
    const float* weights = across.weights_of(x);
    const uint8_t* from = row + across.first(x) * channels;
    const int64_t count = across.end(x) - across.first(x);
    for (int64_t channel = 0; channel < channels; ++channel) {
      float sum = 0;
      for (int64_t k = 0; k < count; ++k) sum += weights[k] * static_cast<float>(from[k * channels + channel]);
      out[channel * outputs + x] = sum;
    }
  }
}

}  // namespace startrail

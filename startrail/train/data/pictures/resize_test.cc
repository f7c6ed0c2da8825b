#include "startrail/train/data/pictures/resize.h"

#include <gtest/gtest.h>

#include <cmath>

#include "startrail/base/error.h"

namespace startrail {
namespace {

const std::vector<std::pair<int64_t, int64_t>> kSizes = {{8, 8},  {9, 8},    {16, 8}, {100, 7}, {8, 16},
                                                         {7, 50}, {640, 33}, {1, 5},  {5, 1},   {1, 1}};

// The triangle filter as it is defined, output by output over all inputs.
double reference(const std::vector<uint8_t>& values, double ratio, int64_t output) {
  const double reach = std::max(ratio, 1.0), centre = (static_cast<double>(output) + 0.5) * ratio;
  double sum = 0, weights = 0;
  for (size_t i = 0; i < values.size(); ++i) {
    const double weight = std::max(0.0, 1 - std::abs(static_cast<double>(i) + 0.5 - centre) / reach);
    sum += weight * values[i];
    weights += weight;
  }
  return sum / weights;
}

std::vector<float> resized(const Filter& filter, const std::vector<uint8_t>& values, int64_t channels = 1) {
  std::vector<float> out(filter.firsts.size() * static_cast<size_t>(channels));
  resize_row(filter, values.data(), channels, out.data());
  return out;
}

TEST(Resize, IsTheTriangleFilter) {
  for (const auto& [from, to] : kSizes) {
    std::vector<uint8_t> values;
    for (int64_t i = 0; i < from; ++i) values.push_back(static_cast<uint8_t>(i * i * 31 + 7));
    const Filter filter = stretch(1, from, 1, to).across;
    const std::vector<float> out = resized(filter, values);
    ASSERT_EQ(static_cast<int64_t>(out.size()), to);
    for (int64_t i = 0; i < to; ++i) {
      const double expected = reference(values, static_cast<double>(from) / static_cast<double>(to), i);
      EXPECT_NEAR(out[static_cast<size_t>(i)], expected, 1e-4) << from << " to " << to << " at " << i;
      EXPECT_GE(filter.first(i), 0);
      EXPECT_GT(filter.end(i), filter.first(i));
      EXPECT_LE(filter.end(i), from);
      EXPECT_LE(filter.end(i) - filter.first(i), filter.taps);
    }
  }
}

TEST(Resize, KeepsTheChannelsApart) {
  const Filter filter = stretch(1, 3, 1, 2).across;
  const std::vector<float> both = resized(filter, {1, 100, 2, 101, 3, 102}, 2);
  const std::vector<float> first = resized(filter, {1, 2, 3}), second = resized(filter, {100, 101, 102});
  EXPECT_EQ(both, (std::vector<float>{first[0], first[1], second[0], second[1]}));
}

TEST(Resize, AConstantStaysConstant) {
  for (const auto& [from, to] : kSizes) {
    const Filter filter = stretch(1, from, 1, to).across;
    const double rounding = 201 * 0x1p-24 * static_cast<double>(filter.taps);
    for (const float value : resized(filter, std::vector<uint8_t>(static_cast<size_t>(from), 201)))
      EXPECT_NEAR(value, 201, rounding) << from << " to " << to;
  }
}

TEST(Resize, ARampStaysLinearInside) {
  for (const auto& [from, to] : {std::pair<int64_t, int64_t>{200, 50}, {200, 33}, {200, 190}, {50, 200}, {50, 70}}) {
    std::vector<uint8_t> values;
    for (int64_t i = 0; i < from; ++i) values.push_back(static_cast<uint8_t>(i));
    const double ratio = static_cast<double>(from) / static_cast<double>(to);
    const std::vector<float> out = resized(stretch(1, from, 1, to).across, values);
    const auto edge = static_cast<int64_t>(std::ceil(std::max(1.0, 1 / ratio)));
    // The centre of an output is at this place of the ramp. A triangle off the pixels' grid is a little lopsided.
    for (int64_t i = edge; i < to - edge; ++i)
      EXPECT_NEAR(out[static_cast<size_t>(i)], (static_cast<double>(i) + 0.5) * ratio - 0.5, ratio > 1 ? 0.1 : 1e-4)
          << from << " to " << to << " at " << i;
  }
}

TEST(Resize, OfTheSameSizeCopies) {
  const std::vector<uint8_t> values{3, 1, 4, 1, 5, 9, 2, 6};
  EXPECT_EQ(resized(stretch(1, 8, 1, 8).across, values), (std::vector<float>{3, 1, 4, 1, 5, 9, 2, 6}));
}

TEST(Resize, CoverTakesTheMiddle) {
  std::vector<uint8_t> values;
  for (int i = 0; i < 21; ++i) values.push_back(static_cast<uint8_t>(10 * i));
  // Of the right height, so nothing is scaled: the middle 8 of 21, and not a blend of neighbours.
  EXPECT_EQ(resized(cover(4, 21, 4, 8).across, values), (std::vector<float>{60, 70, 80, 90, 100, 110, 120, 130}));
  const Filters halved = cover(16, 40, 8, 8);  // to 8 x 20, of which columns 6 to 14
  EXPECT_EQ(halved.down.firsts.size(), 8u);
  const Filter whole = stretch(16, 40, 8, 20).across;
  for (int64_t i = 0; i < 8; ++i) {
    EXPECT_EQ(halved.across.first(i), whole.first(i + 6));
    EXPECT_EQ(halved.across.end(i), whole.end(i + 6));
    for (int64_t k = 0; k < whole.end(i + 6) - whole.first(i + 6); ++k)
      EXPECT_EQ(halved.across.weights_of(i)[k], whole.weights_of(i + 6)[k]);
  }
}

TEST(Resize, CoverStaysInsideForAnySizes) {
  for (int64_t height = 1; height < 40; height += 3)
    for (int64_t width = 1; width < 40; width += 2)
      for (const auto& [to_height, to_width] : {std::pair<int64_t, int64_t>{8, 8}, {5, 11}, {32, 7}, {1, 1}}) {
        const Filters filters = cover(height, width, to_height, to_width);
        ASSERT_EQ(static_cast<int64_t>(filters.down.firsts.size()), to_height);
        ASSERT_EQ(static_cast<int64_t>(filters.across.firsts.size()), to_width);
        const auto check = [](const Filter& filter, int64_t inputs, int64_t outputs) {
          for (int64_t i = 0; i < outputs; ++i) {
            ASSERT_GE(filter.first(i), i > 0 ? filter.first(i - 1) : 0);
            ASSERT_GE(filter.end(i), i > 0 ? filter.end(i - 1) : 1);
            ASSERT_LE(filter.end(i), inputs);
          }
        };
        check(filters.down, height, to_height);
        check(filters.across, width, to_width);
      }
}

}  // namespace
}  // namespace startrail

#include "startrail/train/data/pictures/shapes.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>
#include <numbers>
#include <set>

namespace startrail {
namespace {

at::Tensor draw(int64_t index, const PictureShape& shape, uint64_t seed = 1) {
  return draw_shape(seed, index, shape, {0, shape.frames, 0, shape.height});
}

// How much of each pixel the figure covers, [frames, height, width]. Gray pictures have two colours and their blends.
at::Tensor coverage(const at::Tensor& picture) {
  const at::Tensor gray = picture[0].to(at::kDouble);
  return (gray - gray.min()) / (gray.max() - gray.min());
}

struct Moments {
  double area, x, y;  // area and centre
  double spread;      // the polar moment about the centre over the square of the area: what tells the figures apart
};

Moments moments(const at::Tensor& covered) {
  const int64_t height = covered.size(0), width = covered.size(1);
  const at::Tensor x = (at::arange(width, at::kDouble) + 0.5).expand({height, width});
  const at::Tensor y = (at::arange(height, at::kDouble) + 0.5).unsqueeze(1).expand({height, width});
  const double area = covered.sum().item<double>();
  const double mean_x = (covered * x).sum().item<double>() / area, mean_y = (covered * y).sum().item<double>() / area;
  const double polar = (covered * ((x - mean_x).square() + (y - mean_y).square())).sum().item<double>();
  return {area, mean_x, mean_y, polar / (area * area)};
}

TEST(Shapes, DependOnSeedAndIndexOnly) {
  const PictureShape shape{3, 1, 32, 32};
  std::set<float> sums;
  for (int64_t index = 0; index < 50; ++index) {
    EXPECT_TRUE(at::equal(draw(index, shape), draw(index, shape)));
    sums.insert(draw(index, shape).sum().item<float>());
  }
  EXPECT_EQ(sums.size(), 50u);
  EXPECT_FALSE(at::equal(draw(3, shape, 1), draw(3, shape, 2)));
}

TEST(Shapes, ABandIsAPartOfTheWhole) {
  for (const PictureShape& shape : {PictureShape{3, 1, 32, 32}, {1, 1, 17, 40}, {3, 5, 24, 20}})
    for (int64_t index = 0; index < 4; ++index) {
      const at::Tensor whole = draw(index, shape);
      ASSERT_EQ(whole.sizes(), (std::vector<int64_t>{shape.channels, shape.frames, shape.height, shape.width}));
      for (int64_t first = 0; first < shape.height; first += 3)
        for (int64_t frame = 0; frame < shape.frames; ++frame) {
          const PictureBand band{frame, shape.frames, first, std::min(first + 7, shape.height)};
          EXPECT_TRUE(at::equal(draw_shape(1, index, shape, band),
                                whole.slice(1, frame, shape.frames).slice(2, band.first_row, band.end_row)));
        }
    }
}

TEST(Shapes, AreBrightOnDark) {
  const PictureShape shape{3, 1, 48, 48};
  for (int64_t index = 0; index < 200; ++index) {
    const at::Tensor brightest = draw(index, shape).amax(0);  // of the channels
    EXPECT_LE(brightest.max().item<float>(), 1);
    EXPECT_GE(brightest.max().item<float>(), 0.5f) << index;
    EXPECT_LE(brightest.min().item<float>(), -0.4f) << index;
    EXPECT_GE(draw(index, shape).min().item<float>(), -1);
  }
}

// The theory: circle 1 / 2 pi, square 1 / 6, triangle 1 / sqrt(27); the cross is two bars less their common square.
TEST(Shapes, AreWhatTheirClassesSay) {
  constexpr double w = 0.7, cross_area = 4 * w - w * w, cross = (2 * 2 * w * (4 + w * w) - 2 * w * w * w * w) / 12;
  const double expected[] = {1 / (2 * std::numbers::pi), cross / (cross_area * cross_area), 1 / 6.0,
                             1 / std::sqrt(27.0)};
  EXPECT_EQ(shape_classes(), (std::vector<std::string>{"circle", "cross", "square", "triangle"}));
  for (const auto& [height, width] : {std::pair<int64_t, int64_t>{128, 128}, {100, 180}})
    for (int64_t index = 0; index < 200; ++index) {
      const double spread = moments(coverage(draw(index, {1, 1, height, width}))[0]).spread;
      EXPECT_NEAR(spread, expected[index % 4], 0.008 * expected[index % 4]) << index;
    }
}

// So that the area does not tell the class, and nothing is cut off at the picture's edge.
TEST(Shapes, HaveTheSameAreasInEveryClass) {
  double sums[4] = {};
  for (int64_t index = 0; index < 2000; ++index) {
    const double area = moments(coverage(draw(index, {1, 1, 64, 64}))[0]).area / (64 * 64);
    EXPECT_GT(area, 0.99 * std::numbers::pi * 0.22 * 0.22) << index;
    EXPECT_LT(area, 1.01 * std::numbers::pi * 0.36 * 0.36) << index;
    sums[index % 4] += area / 500;
  }
  for (const double sum : sums) EXPECT_NEAR(sum, sums[0], 0.05 * sums[0]);
}

TEST(Shapes, MoveInAStraightLineAndStayInside) {
  const PictureShape shape{1, 9, 64, 96};
  double travelled = 0;
  for (int64_t index = 0; index < 40; ++index) {
    const at::Tensor covered = coverage(draw(index, shape));
    std::vector<Moments> path;
    for (int64_t frame = 0; frame < shape.frames; ++frame) path.push_back(moments(covered[frame]));
    for (size_t i = 1; i < path.size(); ++i) {
      EXPECT_NEAR(path[i].area, path[0].area, 0.01 * path[0].area) << index;
      EXPECT_NEAR(path[i].x - path[i - 1].x, path[1].x - path[0].x, 0.1) << index << " frame " << i;
      EXPECT_NEAR(path[i].y - path[i - 1].y, path[1].y - path[0].y, 0.1) << index << " frame " << i;
    }
    travelled += std::hypot(path.back().x - path[0].x, path.back().y - path[0].y);
  }
  EXPECT_GT(travelled / 40, 10);
}

TEST(Shapes, LookAlikeAtAnyResolution) {
  for (int64_t index = 0; index < 8; ++index) {
    const at::Tensor small = draw(index, {3, 1, 32, 32}), large = draw(index, {3, 1, 256, 256});
    EXPECT_LT((at::avg_pool2d(large.squeeze(1), 8) - small.squeeze(1)).abs().mean().item<float>(), 0.01f) << index;
  }
}

}  // namespace
}  // namespace startrail

#include "startrail/train/data/pictures/shapes.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <numbers>

#include "startrail/base/error.h"
#include "startrail/base/random.h"

namespace startrail {
namespace {

enum class Figure { circle, cross, square, triangle };

struct Point {
  double x = 0, y = 0;
};

// Numbers from 0 to 1 that depend on the key only.
class Random {
 public:
  explicit Random(uint64_t key) : key_(key) {}
  double between(double low, double high) { return low + (high - low) * uniform(key_, next_++); }

 private:
  uint64_t key_, next_ = 0;
};

// One picture's figure, all lengths in pixels.
struct Drawing {
  Figure figure;
  double radius;        // of the circle whose area the figure has
  double cosine, sine;  // of its rotation
  Point first, last;    // its centre in the first and in the last frame
  std::array<float, 3> colour, background;
};

// A square of side a has area a^2; a cross with arms of length l and width 0.7 l has (4 x 0.7 - 0.7^2) l^2; a triangle
// of side s has sqrt(3) / 4 s^2.
double half_side(double radius) { return radius * std::sqrt(std::numbers::pi) / 2; }
constexpr double kArmWidth = 0.7;
double arm_length(double radius) {
  return radius * std::sqrt(std::numbers::pi / (4 * kArmWidth - kArmWidth * kArmWidth));
}
double corner_distance(double radius) {
  return radius * std::sqrt(4 * std::numbers::pi / std::numbers::sqrt3) / std::numbers::sqrt3;
}

std::vector<Point> corners(Figure figure, double radius) {
  switch (figure) {
    case Figure::circle:
      break;
    case Figure::cross: {
      const double l = arm_length(radius), w = l * kArmWidth / 2;
      return {{l, w}, {l, -w}, {-l, w}, {-l, -w}, {w, l}, {w, -l}, {-w, l}, {-w, -l}};
    }
    case Figure::square: {
      const double a = half_side(radius);
      return {{a, a}, {a, -a}, {-a, a}, {-a, -a}};
    }
    case Figure::triangle: {
      const double d = corner_distance(radius), half = d * std::numbers::sqrt3 / 2;
      return {{0, -d}, {half, d / 2}, {-half, d / 2}};
    }
  }
  return {};
}

// From `point`, relative to the centre and in the figure's own rotation: below 0 inside. Exact near the edges, where it
// decides how much of a pixel is covered.
double distance(Figure figure, double radius, const Point& point) {
  const auto box = [&](double half_width, double half_height) {
    const double dx = std::abs(point.x) - half_width, dy = std::abs(point.y) - half_height;
    return std::hypot(std::max(dx, 0.0), std::max(dy, 0.0)) + std::min(std::max(dx, dy), 0.0);
  };
  switch (figure) {
    case Figure::circle:
      return std::hypot(point.x, point.y) - radius;
    case Figure::cross: {
      const double l = arm_length(radius), w = l * kArmWidth / 2;
      return std::min(box(l, w), box(w, l));
    }
    case Figure::square:
      return box(half_side(radius), half_side(radius));
    case Figure::triangle: {
      const double side = std::abs(point.x) * std::numbers::sqrt3 / 2 - point.y / 2;
      return std::max(side, point.y) - corner_distance(radius) / 2;
    }
  }
  return 0;
}

// Hue, saturation and value from 0 to 1, to colours from -1 to 1.
std::array<float, 3> colour_of(double hue, double saturation, double value) {
  std::array<float, 3> colour{};
  for (size_t i = 0; i < 3; ++i) {
    // The share of this primary rises and falls with the hue's distance from it on the colour circle.
    const double away = std::abs(std::remainder(hue - static_cast<double>(i) / 3, 1.0));
    const double share = std::clamp(2 - 6 * away, 0.0, 1.0);
    colour[i] = static_cast<float>(2 * value * (1 - saturation * (1 - share)) - 1);
  }
  return colour;
}

Drawing make_drawing(uint64_t seed, int64_t index, const PictureShape& shape) {
  Random random(mix(seed, static_cast<uint64_t>(index)));
  const auto width = static_cast<double>(shape.width), height = static_cast<double>(shape.height);
  Drawing drawing{};
  drawing.figure = static_cast<Figure>(index % 4);
  // Of a larger circle the triangle with its area would not fit. A moving figure needs room.
  drawing.radius = random.between(0.22, shape.frames > 1 ? 0.28 : 0.36) * std::min(width, height);
  const double angle = random.between(-15, 15) * std::numbers::pi / 180;
  drawing.cosine = std::cos(angle);
  drawing.sine = std::sin(angle);
  Point least, most;  // how far it reaches from its centre
  if (drawing.figure == Figure::circle) {
    least = {-drawing.radius, -drawing.radius};
    most = {drawing.radius, drawing.radius};
  }
  for (const Point& corner : corners(drawing.figure, drawing.radius)) {
    const double x = drawing.cosine * corner.x - drawing.sine * corner.y;
    const double y = drawing.sine * corner.x + drawing.cosine * corner.y;
    least = {std::min(least.x, x), std::min(least.y, y)};
    most = {std::max(most.x, x), std::max(most.y, y)};
  }
  for (Point* place : {&drawing.first, &drawing.last})  // and so everywhere between
    *place = {random.between(-least.x, width - most.x), random.between(-least.y, height - most.y)};
  // Evaluated one after the other: in a call the order would be the compiler's.
  const double hue = random.between(0, 1), saturation = random.between(0.7, 1), value = random.between(0.75, 1);
  const double hue_behind = random.between(0, 1), value_behind = random.between(0.05, 0.3);
  drawing.colour = colour_of(hue, shape.channels == 1 ? 0 : saturation, value);
  drawing.background = colour_of(hue_behind, shape.channels == 1 ? 0 : 0.5, value_behind);
  return drawing;
}

}  // namespace

const std::vector<std::string>& shape_classes() {
  static const std::vector<std::string> names{"circle", "cross", "square", "triangle"};
  return names;
}

at::Tensor draw_shape(uint64_t seed, int64_t index, const PictureShape& shape, const PictureBand& band) {
  const Drawing drawing = make_drawing(seed, index, shape);
  const int64_t frames = band.end_frame - band.first_frame, rows = band.end_row - band.first_row;
  at::Tensor result = at::empty({shape.channels, frames, rows, shape.width}, at::kFloat);
  auto* out = result.mutable_data_ptr<float>();
  const int64_t plane = frames * rows * shape.width;
  for (int64_t frame = band.first_frame; frame < band.end_frame; ++frame) {
    const double time = shape.frames > 1 ? static_cast<double>(frame) / static_cast<double>(shape.frames - 1) : 0;
    const Point centre{std::lerp(drawing.first.x, drawing.last.x, time),
                       std::lerp(drawing.first.y, drawing.last.y, time)};
    for (int64_t row = band.first_row; row < band.end_row; ++row)
      for (int64_t column = 0; column < shape.width; ++column, ++out) {
        const double x = static_cast<double>(column) + 0.5 - centre.x, y = static_cast<double>(row) + 0.5 - centre.y;
        const Point turned{drawing.cosine * x + drawing.sine * y, drawing.cosine * y - drawing.sine * x};
        const double inside = std::clamp(0.5 - distance(drawing.figure, drawing.radius, turned), 0.0, 1.0);
        for (int64_t channel = 0; channel < shape.channels; ++channel) {
          const auto c = static_cast<size_t>(channel);
          out[channel * plane] = std::lerp(drawing.background[c], drawing.colour[c], static_cast<float>(inside));
        }
      }
  }
  return result;
}

}  // namespace startrail

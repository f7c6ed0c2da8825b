// A run's losses as characters. A character is two dots wide and four high, as Braille has them.
#include <algorithm>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>

#include "cli/page/page.h"
#include "startrail/base/text.h"

namespace startrail::cli {
namespace {

using nlohmann::json;

constexpr size_t kLabel = 11;  // columns for a value at the left, and the axis

struct Range {
  double least = std::numeric_limits<double>::infinity(), greatest = -std::numeric_limits<double>::infinity();
  void add(double value) {
    least = std::min(least, value);
    greatest = std::max(greatest, value);
  }
  bool empty() const { return least > greatest; }
};

// At most nine letters.
std::string number_text(double value) {
  char text[32];
  std::snprintf(text, sizeof text, std::abs(value) < 10'000 ? "%.3f" : "%.2e", value);
  return text;
}

class Dots {
 public:
  Dots(size_t columns, size_t rows) : columns_(columns), cells_(columns * rows) {}
  size_t width() const { return 2 * columns_; }
  size_t height() const { return 4 * cells_.size() / columns_; }

  void set(size_t x, size_t y) {
    constexpr unsigned char kBits[4][2] = {{0x01, 0x08}, {0x02, 0x10}, {0x04, 0x20}, {0x40, 0x80}};
    cell(x, y) = static_cast<unsigned char>(cell(x, y) | kBits[y % 4][x % 2]);
  }
  // Along the steeper side, so that there are no holes.
  void line(size_t x0, size_t y0, size_t x1, size_t y1) {
    const auto far = [](size_t a, size_t b) { return a > b ? a - b : b - a; };
    const size_t count = std::max({far(x0, x1), far(y0, y1), size_t{1}});
    const auto between = [&](size_t a, size_t b, size_t i) {
      const double share = static_cast<double>(i) / static_cast<double>(count);
      return static_cast<size_t>(std::lround(static_cast<double>(a) * (1 - share) + static_cast<double>(b) * share));
    };
    for (size_t i = 0; i <= count; ++i) set(between(x0, x1, i), between(y0, y1, i));
  }
  // Where a value of the range lies among `size` dots; in the middle of a range that is a single value.
  static size_t place(double value, const Range& range, size_t size) {
    // In halves, as the difference of two large numbers need not be one.
    const double span = range.greatest / 2 - range.least / 2;
    const double share = span > 0 ? (value / 2 - range.least / 2) / span : 0.5;
    return static_cast<size_t>(std::lround(share * static_cast<double>(size - 1)));
  }
  // The character in row `row`: U+2800 and the bits, in UTF-8.
  std::string text(size_t column, size_t row) const {
    const unsigned char bits = cells_[row * columns_ + column];
    if (bits == 0) return " ";
    return {'\xe2', static_cast<char>(0xa0 | bits >> 6), static_cast<char>(0x80 | (bits & 63))};
  }

 private:
  unsigned char& cell(size_t x, size_t y) { return cells_[y / 4 * columns_ + x / 2]; }

  size_t columns_;
  std::vector<unsigned char> cells_;
};

}  // namespace

std::string draw_losses(const json& run, size_t columns, size_t rows) {
  const json &steps = run["step"], &losses = run["loss"], &checks = run["validation"];
  Range of_steps, of_losses;
  const auto add = [&](const json& step, const json& loss) {
    if (!loss.is_number()) return;
    of_steps.add(step);
    of_losses.add(loss);
  };
  for (size_t i = 0; i < steps.size(); ++i) add(steps[i], losses[i]);
  for (const json& check : checks) add(check[0], check[1]);
  if (of_losses.empty()) return "no step has a loss that is a number\n";
  Dots dots(std::max<size_t>(columns, kLabel + 12) - kLabel, rows);
  const auto x_of = [&](double step) { return dots.place(step, of_steps, dots.width()); };
  const auto y_of = [&](double loss) { return dots.height() - 1 - dots.place(loss, of_losses, dots.height()); };
  for (size_t i = 0; i < steps.size(); ++i) {
    if (!losses[i].is_number()) continue;
    const bool joined = i > 0 && losses[i - 1].is_number();
    dots.line(x_of(steps[joined ? i - 1 : i]), y_of(losses[joined ? i - 1 : i]), x_of(steps[i]), y_of(losses[i]));
  }
  std::set<std::pair<size_t, size_t>> rings;  // row and column of validations
  for (const json& check : checks)
    if (check[1].is_number()) rings.insert({y_of(check[1]) / 4, x_of(check[0]) / 2});
  std::string text;
  for (size_t row = 0; row < rows; ++row) {
    const double share = static_cast<double>(row) / static_cast<double>(std::max<size_t>(1, rows - 1));
    const bool labelled = of_losses.least < of_losses.greatest ? row % 5 == 0 || row + 1 == rows : row == rows / 2;
    std::string label = labelled ? number_text(of_losses.greatest * (1 - share) + of_losses.least * share) : "";
    label.insert(0, kLabel - 2 - std::min(kLabel - 2, label.size()), ' ');
    text += label + " |";
    for (size_t column = 0; column < dots.width() / 2; ++column)
      text += rings.contains({row, column}) ? "o" : dots.text(column, row);
    while (text.back() == ' ') text.pop_back();
    text += "\n";
  }
  const std::string first = cat(static_cast<int64_t>(of_steps.least)),
                    end = cat("step ", static_cast<int64_t>(of_steps.greatest));
  const size_t width = dots.width() / 2, used = first.size() + end.size();
  return cat(text, std::string(kLabel, ' '), first, std::string(width > used ? width - used : 1, ' '), end, "\n");
}

}  // namespace startrail::cli

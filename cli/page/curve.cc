// A run's losses as characters. A character is two dots wide and four high, as Braille has them.
#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>

#include "cli/page/page.h"
#include "startrail/base/text.h"

namespace startrail::cli {
namespace {

using nlohmann::json;

class Dots {
 public:
  Dots(size_t columns, size_t rows) : columns_(columns), cells_(columns * rows) {}
  size_t width() const { return 2 * columns_; }
  size_t height() const { return 4 * cells_.size() / columns_; }

  void set(size_t x, size_t y) {
    constexpr unsigned char kBits[4][2] = {{0x01, 0x08}, {0x02, 0x10}, {0x04, 0x20}, {0x40, 0x80}};
    cell(x, y) = static_cast<unsigned char>(cell(x, y) | kBits[y % 4][x % 2]);
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

struct Range {
  double least = std::numeric_limits<double>::infinity(), greatest = -std::numeric_limits<double>::infinity();
  void add(double value) {
    least = std::min(least, value);
    greatest = std::max(greatest, value);
  }
  bool empty() const { return least > greatest; }
};

}  // namespace

std::string draw_losses(const json& run, size_t columns, size_t rows) {
  const json &steps = run["step"], &losses = run["loss"], &checks = run["validation"];
  Range of_steps, of_losses;
  for (size_t i = 0; i < steps.size(); ++i)
    if (losses[i].is_number()) {
      of_steps.add(steps[i]);
      of_losses.add(losses[i]);
    }
  if (of_losses.empty()) return "no step has a loss that is a number\n";
  for (const json& check : checks)
    if (check[1].is_number()) of_losses.add(check[1]);
  constexpr size_t kLabel = 9;
  Dots dots(std::max<size_t>(columns, kLabel + 12) - kLabel, rows);
  const auto x_of = [&](double step) {
    const double share = (step - of_steps.least) / std::max(1.0, of_steps.greatest - of_steps.least);
    return static_cast<size_t>(std::lround(std::clamp(share, 0.0, 1.0) * static_cast<double>(dots.width() - 1)));
  };
  const auto y_of = [&](double loss) {
    const double span = of_losses.greatest - of_losses.least;
    const double share = span > 0 ? (of_losses.greatest - loss) / span : 0.5;
    return static_cast<size_t>(std::lround(share * static_cast<double>(dots.height() - 1)));
  };
  std::vector<Range> at(dots.width());
  for (size_t i = 0; i < steps.size(); ++i)
    if (losses[i].is_number()) at[x_of(steps[i])].add(losses[i]);
  for (size_t x = 0; x < at.size(); ++x)
    if (!at[x].empty())
      for (size_t y = y_of(at[x].greatest); y <= y_of(at[x].least); ++y) dots.set(x, y);
  std::map<std::pair<size_t, size_t>, bool> rings;  // by row and column
  for (const json& check : checks)
    if (check[1].is_number()) rings[{y_of(check[1]) / 4, x_of(check[0]) / 2}] = true;
  std::string text;
  for (size_t row = 0; row < rows; ++row) {
    const double share = static_cast<double>(row) / static_cast<double>(std::max<size_t>(1, rows - 1));
    const bool labelled = row % 5 == 0 || row + 1 == rows;
    std::string label = labelled ? fixed(of_losses.greatest + share * (of_losses.least - of_losses.greatest), 3) : "";
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

#include "startrail/base/text.h"

#include <algorithm>
#include <charconv>
#include <iomanip>

#include "startrail/base/error.h"

namespace startrail {

std::vector<std::string> split(std::string_view text, char separator) {
  std::vector<std::string> parts;
  if (text.empty()) return parts;
  size_t begin = 0;
  for (size_t end; (end = text.find(separator, begin)) != std::string_view::npos; begin = end + 1)
    parts.emplace_back(text.substr(begin, end - begin));
  parts.emplace_back(text.substr(begin));
  return parts;
}

int64_t parse_int(std::string_view text, std::string_view what) {
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size())
    throw UserError(cat(what, " '", text, "' is not a whole number"));
  return value;
}

std::string fixed(double value, int digits) {
  std::ostringstream out;
  out << std::fixed << std::setprecision(digits) << value;
  return out.str();
}

std::string human_bytes(double bytes) {
  const char* units[] = {"B", "kB", "MB", "GB", "TB", "PB"};
  int unit = 0;
  while (bytes >= 999.5 && unit < 5) {
    bytes /= 1000;
    ++unit;
  }
  const int digits = unit == 0 || bytes >= 99.95 ? 0 : bytes >= 9.995 ? 1 : 2;
  return cat(fixed(bytes, digits), " ", units[unit]);
}

std::string hex_text(uint64_t value) {
  char text[17];
  std::snprintf(text, sizeof text, "%016llx", static_cast<unsigned long long>(value));
  return text;
}

std::string human_count(double value) {
  if (value >= 1e9) return fixed(value / 1e9, 2) + "B";
  if (value >= 1e6) return fixed(value / 1e6, value < 1e7 ? 2 : 1) + "M";
  if (value >= 1e4) return fixed(value / 1e3, 1) + "k";
  return fixed(value, 0);
}

std::string counted(int64_t count) {
  std::string text = std::to_string(count);
  for (auto place = static_cast<int64_t>(text.size()) - 3; place > 0; place -= 3)
    text.insert(static_cast<size_t>(place), 1, ',');
  return text;
}

std::string plural(int64_t count, const std::string& one, const std::string& ending) {
  return cat(counted(count), " ", one, count == 1 ? "" : ending);
}

std::string table(const std::vector<std::vector<std::string>>& rows, std::string_view indent) {
  std::vector<size_t> widths;
  for (const auto& row : rows) {
    widths.resize(std::max(widths.size(), row.size()));
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  std::string text;
  for (const auto& row : rows) {
    std::string line(indent);
    for (size_t i = 0; i < row.size(); ++i) {
      const std::string pad(widths[i] - row[i].size(), ' ');
      line += i == 0 ? row[i] + pad : "  " + pad + row[i];
    }
    line.erase(line.find_last_not_of(' ') + 1);
    text += line + "\n";
  }
  return text;
}

}  // namespace startrail

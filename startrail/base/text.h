// Small text helpers used everywhere: joining values into messages, numbers for people, reading numbers back.
#pragma once

#include <cstdint>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

namespace startrail {

// The values printed one after the other.
template <class... Values>
std::string cat(const Values&... values) {
  std::ostringstream out;
  (out << ... << values);
  return out.str();
}

// "1, 2, 4" from a container.
template <class Container>
std::string join(const Container& values, std::string_view separator = ", ") {
  std::ostringstream out;
  bool first = true;
  for (const auto& value : values) {
    if (!first) out << separator;
    first = false;
    out << value;
  }
  return out.str();
}

// "rank 3", "ranks 3, 5".
template <class Container>
std::string numbered(const std::string& one, const Container& values) {
  return cat(one, values.size() == 1 ? " " : "s ", join(values));
}

// "a,b,,c" at ',' -> {"a", "b", "", "c"}; an empty text gives no parts.
std::vector<std::string> split(std::string_view text, char separator);

// A whole number, or UserError "<what> '<text>' is not a whole number".
int64_t parse_int(std::string_view text, std::string_view what);

// 3.14159, 2 -> "3.14".
std::string fixed(double value, int digits);

// 1536000 -> "1.54 MB" (decimal units, as networks and papers count).
std::string human_bytes(double bytes);
std::string hex_text(uint64_t value);  // 16 digits

// 983040 -> "983.0k": a count for people.
std::string human_count(double value);
std::string counted(int64_t count);  // "12,345"
// "1 file", "2,000 files".
std::string plural(int64_t count, const std::string& one, const std::string& ending = "s");

// A table with aligned columns: the first column to the left, the others to the right. Rows may be shorter than the
// head.
std::string table(const std::vector<std::vector<std::string>>& rows, std::string_view indent = "  ");

}  // namespace startrail

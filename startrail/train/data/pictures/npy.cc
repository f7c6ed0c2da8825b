#include "startrail/train/data/pictures/npy.h"

#include <optional>

#include "startrail/base/error.h"

namespace startrail {
namespace {

// Reads the one kind of Python dictionary that headers hold: {'descr': '<f4', 'fortran_order': False, 'shape': (3, 4),}
class Dictionary {
 public:
  std::optional<std::string> descr;
  std::optional<bool> fortran_order;
  std::optional<std::vector<int64_t>> shape;

  // Whether it is one with these three entries and nothing else.
  bool read(std::string_view text) {
    rest_ = text;
    if (!take('{')) return false;
    while (!take('}'))
      if (!read_entry() || !(take(',') || peek() == '}')) return false;
    skip_spaces();
    return rest_.empty() && descr && fortran_order && shape;
  }

 private:
  bool read_entry() {
    const auto key = read_word();
    if (!key || !take(':')) return false;
    if (*key == "descr") return (descr = read_word()).has_value();
    if (*key == "fortran_order") {
      fortran_order = take_text("True");
      return *fortran_order || take_text("False");
    }
    return *key == "shape" && (shape = read_tuple()).has_value();
  }

  std::optional<std::string> read_word() {
    const char quote = peek();
    if (quote != '\'' && quote != '"') return {};
    const size_t end = rest_.find(quote, 1);
    if (end == std::string_view::npos) return {};
    const std::string word(rest_.substr(1, end - 1));
    rest_.remove_prefix(end + 1);
    return word;
  }

  std::optional<std::vector<int64_t>> read_tuple() {
    std::vector<int64_t> values;
    if (!take('(')) return {};
    while (!take(')')) {
      const char* digits = "0123456789";
      skip_spaces();
      const size_t length = std::min(rest_.find_first_not_of(digits), rest_.size());
      if (length == 0 || length > 18) return {};
      values.push_back(std::stoll(std::string(rest_.substr(0, length))));
      rest_.remove_prefix(length);
      if (!take(',') && peek() != ')') return {};
    }
    return values;
  }

  void skip_spaces() { rest_.remove_prefix(std::min(rest_.find_first_not_of(" \t\n"), rest_.size())); }
  char peek() {
    skip_spaces();
    return rest_.empty() ? '\0' : rest_.front();
  }
  bool take(char wanted) {
    if (peek() != wanted) return false;
    rest_.remove_prefix(1);
    return true;
  }
  bool take_text(std::string_view wanted) {
    skip_spaces();
    if (!rest_.starts_with(wanted)) return false;
    rest_.remove_prefix(wanted.size());
    return true;
  }

  std::string_view rest_;
};

}  // namespace

NpyHeader parse_npy(std::string_view start, size_t size, const std::string& name) {
  const auto fail = [&](const auto&... what) { throw UserError(cat(name, " ", what...)); };
  if (size == 0) fail("is empty: replace or remove it");
  if (!start.starts_with("\x93NUMPY")) fail("is not a .npy file despite its name: replace or remove it");
  const auto byte = [&](size_t i) { return i < start.size() ? static_cast<unsigned char>(start[i]) : size_t{0}; };
  const size_t version = byte(6), begin = version == 1 ? 10 : 12;
  if (start.size() < begin) fail("is truncated: it has only ", start.size(), " bytes");
  if (version < 1 || version > 3) fail("has version ", version, " of the .npy format: versions 1 to 3 are read");
  const size_t length = byte(8) | byte(9) << 8 | (version == 1 ? 0 : byte(10) << 16 | byte(11) << 24);
  if (length > kLargestNpyHeader && length <= size - begin)
    fail("has a header of ", length, " bytes: up to ", kLargestNpyHeader, " are read; save it again with numpy.save");
  if (length > start.size() - begin) fail("is truncated: its header says ", length, " bytes, but the file has ", size);
  Dictionary entries;
  if (!entries.read(start.substr(begin, length))) fail("has a header that cannot be read: replace or remove it");
  NpyHeader header;
  header.shape = *entries.shape;
  header.offset = static_cast<int64_t>(begin + length);
  if (*entries.descr == "<f2")
    header.type = at::kHalf;
  else if (*entries.descr == "<f4")
    header.type = at::kFloat;
  else if (*entries.descr == "<f8")
    header.type = at::kDouble;
  else
    fail("holds numbers of type ", *entries.descr, ": latents are <f2, <f4 or <f8");
  if (*entries.fortran_order) fail("is in Fortran order: save numpy.ascontiguousarray of it");
  const size_t available = size - begin - length;
  size_t needed = c10::elementSize(header.type);
  for (const int64_t extent : header.shape) {
    if (extent == 0) fail("has the empty shape (", join(header.shape), "): replace or remove it");
    if (needed > available / static_cast<size_t>(extent))
      fail("is truncated: its shape (", join(header.shape), ") does not fit into ", available, " bytes");
    needed *= static_cast<size_t>(extent);
  }
  if (needed != available) fail("has ", available, " bytes of numbers where its shape needs ", needed);
  return header;
}

}  // namespace startrail

#include "startrail/train/tokenizer/nfc.h"

#include <utf8proc.h>

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <new>
#include <utility>
#include <vector>

#include "startrail/train/tokenizer/letters.h"

namespace startrail {
namespace {

constexpr int32_t kFirst = 0x300, kEnd = 0x30000;  // outside NFC changes nothing
constexpr auto kNfc = static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE);

const uint8_t* bytes_of(std::string_view text) { return reinterpret_cast<const uint8_t*>(text.data()); }

// Marks since Unicode 10 that have an order, and the one that is joined. The models that want NFC were trained with
// that of Hugging Face's tokenizers, which is Unicode 9's: there these are letters like any other.
constexpr std::pair<uint32_t, uint32_t> kNewer[] = {
    {0x7fd, 0x7fd},     {0x898, 0x89f},     {0x8ca, 0x8d3},     {0x9fe, 0x9fe},     {0xc3c, 0xc3c},
    {0xd3b, 0xd3c},     {0xeba, 0xeba},     {0x1715, 0x1715},   {0x1abf, 0x1ace},   {0x1df6, 0x1dfa},
    {0xa82c, 0xa82c},   {0x10d24, 0x10d27}, {0x10eab, 0x10eac}, {0x10efd, 0x10eff}, {0x10f46, 0x10f50},
    {0x10f82, 0x10f85}, {0x11070, 0x11070}, {0x1133b, 0x1133b}, {0x1145e, 0x1145e}, {0x11839, 0x1183a},
    {0x11930, 0x11930}, {0x1193d, 0x1193e}, {0x11943, 0x11943}, {0x119e0, 0x119e0}, {0x11a34, 0x11a34},
    {0x11a47, 0x11a47}, {0x11a99, 0x11a99}, {0x11d42, 0x11d45}, {0x11d97, 0x11d97}, {0x11f41, 0x11f42},
    {0x16ff0, 0x16ff1}, {0x1e08f, 0x1e08f}, {0x1e130, 0x1e136}, {0x1e2ae, 0x1e2ae}, {0x1e2ec, 0x1e2ef},
    {0x1e4ec, 0x1e4ef}};

// Which letters may change, or join the one before: marks that have an order, letters that decompose for good, and
// those that come second or later in a decomposition. Before every other letter the text can be cut for NFC.
std::vector<bool> make_unsure() {
  std::vector<bool> unsure(kEnd, false);
  for (int32_t point = kFirst; point < kEnd; ++point) {
    if (!utf8proc_codepoint_valid(point)) continue;
    if (utf8proc_get_property(point)->combining_class != 0) unsure[point] = true;
    utf8proc_int32_t parts[8];
    const auto count = utf8proc_decompose_char(point, parts, 8, UTF8PROC_DECOMPOSE, nullptr);
    for (utf8proc_ssize_t i = 1; i < count; ++i) unsure[parts[i]] = true;
    if (count < 1 || parts[0] == point) continue;
    if (utf8proc_normalize_utf32(parts, count, kNfc) != 1 || parts[0] != point) unsure[point] = true;
  }
  for (const auto& [first, last] : kNewer) std::fill(unsure.begin() + first, unsure.begin() + last + 1, false);
  return unsure;
}

bool is_unsure(std::string_view letter) {
  static const std::vector<bool> unsure = make_unsure();
  const uint32_t point = code_point(letter);
  return point < kEnd && unsure[point];
}

// The first letter from `from` on that is unsure; the end when there is none.
size_t find_unsure(std::string_view text, size_t from) {
  for (size_t at = from; at < text.size();) {
    // Below U+0300 all is sure: in UTF-8, whatever starts with a byte below 0xCC.
    if (static_cast<uint8_t>(text[at]) < 0xcc) {
      ++at;
      continue;
    }
    const size_t size = letter_size(text.substr(at));
    if (size > 0 && is_unsure(text.substr(at, size))) return at;
    at += size > 0 ? size : 1;
  }
  return text.size();
}

void append_nfc(std::string_view text, std::string& out) {
  utf8proc_uint8_t* made = nullptr;
  const auto size = utf8proc_map(bytes_of(text), static_cast<utf8proc_ssize_t>(text.size()), &made, kNfc);
  const std::unique_ptr<utf8proc_uint8_t, decltype(&std::free)> owner(made, std::free);
  if (size < 0) throw std::bad_alloc();  // the text is UTF-8, so nothing else can fail
  out.append(reinterpret_cast<const char*>(made), static_cast<size_t>(size));
}

}  // namespace

std::string_view to_nfc(std::string_view text, std::string& room) {
  size_t at = find_unsure(text, 0);
  if (at == text.size()) return text;
  room.clear();
  for (size_t done = 0; done < text.size(); at = find_unsure(text, done)) {
    // The run is the unsure letters and the one before them, which they may join.
    size_t begin = at, end = at;
    while (begin > done && (text[--begin] & 0xc0) == 0x80) {
    }
    if (at == text.size() || letter_size(text.substr(begin)) != at - begin ||
        utf8proc_get_property(static_cast<int32_t>(code_point(text.substr(begin, at - begin))))->combining_class != 0)
      begin = at;
    for (size_t size; (size = letter_size(text.substr(end))) > 0 && is_unsure(text.substr(end, size));) end += size;
    room.append(text.substr(done, begin - done));
    if (end > begin) append_nfc(text.substr(begin, end - begin), room);
    done = end;
  }
  return room;
}

}  // namespace startrail

#include "startrail/train/tokenizer/nfc.h"

#include <utf8proc.h>

#include <cstdlib>
#include <memory>
#include <new>
#include <vector>

#include "startrail/train/tokenizer/letters.h"

namespace startrail {
namespace {

constexpr int32_t kFirst = 0x300, kEnd = 0x30000;  // outside NFC changes nothing
constexpr auto kNfc = static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE);

const uint8_t* bytes_of(std::string_view text) { return reinterpret_cast<const uint8_t*>(text.data()); }

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
    if (at == text.size() || letter_size(text.substr(begin)) != at - begin) begin = at;
    for (size_t size; (size = letter_size(text.substr(end))) > 0 && is_unsure(text.substr(end, size));) end += size;
    room.append(text.substr(done, begin - done));
    if (end > begin) append_nfc(text.substr(begin, end - begin), room);
    done = end;
  }
  return room;
}

}  // namespace startrail

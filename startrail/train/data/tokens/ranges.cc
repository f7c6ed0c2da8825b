#include "startrail/train/data/tokens/ranges.h"

#include <algorithm>

#include "startrail/base/error.h"

namespace startrail {
namespace {

// Seven bits a byte, the lowest first; the eighth says that more follow.
void put(std::string& bytes, int64_t number) {
  auto left = static_cast<uint64_t>(number);
  for (; left > 0x7f; left >>= 7) bytes += static_cast<char>((left & 0x7f) | 0x80);
  bytes += static_cast<char>(left);
}

int64_t take(const std::string& bytes, size_t& at) {
  uint64_t number = 0;
  for (int shift = 0; shift < 64; shift += 7) {
    STARTRAIL_CHECK(at < bytes.size(), "ranges end after ", at, " bytes");
    const auto byte = static_cast<unsigned char>(bytes[at++]);
    number |= uint64_t{byte & 0x7fu} << shift;
    if (byte < 0x80) break;
  }
  return static_cast<int64_t>(number);
}

}  // namespace

void Ranges::add(int64_t begin, int64_t end) {
  const int64_t last = parts_.empty() ? -1 : parts_.back().begin + tokens_ - parts_.back().before;
  STARTRAIL_CHECK(begin >= 0 && begin >= last && begin <= end, begin, " to ", end, " after ", last);
  if (begin == end) return;
  if (begin != last) parts_.push_back({begin, tokens_});
  tokens_ += end - begin;
}

Ranges::Run Ranges::inside(int64_t position) const {
  STARTRAIL_CHECK(position >= 0 && position < tokens_, position, " of ", tokens_);
  const auto next = std::upper_bound(parts_.begin(), parts_.end(), position,
                                     [](int64_t place, const Part& part) { return place < part.before; });
  const Part& part = *std::prev(next);
  const int64_t end = next == parts_.end() ? tokens_ : next->before;
  return {part.begin + position - part.before, end - position};
}

Ranges::Run Ranges::outside(int64_t position, int64_t row) const {
  STARTRAIL_CHECK(position >= 0 && position < row - tokens_, position, " of ", row - tokens_);
  // Before the first part whose tokens outside come after the position, all parts lie before it.
  const auto next = std::upper_bound(parts_.begin(), parts_.end(), position,
                                     [](int64_t place, const Part& part) { return place < part.begin - part.before; });
  const int64_t first = position + (next == parts_.end() ? tokens_ : next->before);
  return {first, (next == parts_.end() ? row : next->begin) - first};
}

std::string Ranges::pack() const {
  std::string bytes;
  put(bytes, static_cast<int64_t>(parts_.size()));
  int64_t last = 0;
  for (size_t i = 0; i < parts_.size(); ++i) {
    const int64_t length = (i + 1 < parts_.size() ? parts_[i + 1].before : tokens_) - parts_[i].before;
    put(bytes, parts_[i].begin - last);
    put(bytes, length);
    last = parts_[i].begin + length;
  }
  return bytes;
}

Ranges Ranges::unpack(const std::string& bytes) {
  Ranges ranges;
  size_t at = 0;
  const int64_t count = take(bytes, at);
  int64_t last = 0;
  for (int64_t i = 0; i < count; ++i) {
    const int64_t begin = last + take(bytes, at);
    last = begin + take(bytes, at);
    ranges.add(begin, last);
  }
  STARTRAIL_CHECK(at == bytes.size(), bytes.size() - at, " bytes follow the ranges");
  return ranges;
}

}  // namespace startrail

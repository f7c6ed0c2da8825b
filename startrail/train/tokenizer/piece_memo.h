// Remembers the tokens of short pieces: text repeats its words. Each thread has its own; each is for one tokenizer.
#pragma once

#include <cstdint>
#include <cstring>
#include <string_view>
#include <vector>

namespace startrail {

class PieceMemo {
 public:
  // Appends the tokens of a piece: remembered ones, or what make() appends.
  template <class Make>
  void encode(std::string_view piece, std::vector<uint32_t>& tokens, const Make& make) {
    if (piece.size() > kMostBytes) return make();
    Key key;
    std::memcpy(key.bytes, piece.data(), piece.size());
    key.bytes[kMostBytes] = static_cast<char>(piece.size());
    Entry& entry = entries_[place(key)];
    if (std::memcmp(&entry.key, &key, sizeof key) == 0) {
      // As many as fit, of which `count` stay: a copy of fixed size is faster.
      const size_t before = tokens.size();
      tokens.resize(before + kMostTokens);
      std::memcpy(tokens.data() + before, entry.tokens, sizeof entry.tokens);
      tokens.resize(before + entry.count);
      return;
    }
    const size_t before = tokens.size();
    make();
    const size_t count = tokens.size() - before;
    if (count > kMostTokens) return;
    entry.key = key;
    entry.count = static_cast<uint32_t>(count);
    std::memcpy(entry.tokens, tokens.data() + before, count * sizeof(uint32_t));
  }

 private:
  static constexpr size_t kMostBytes = 23, kMostTokens = 9;
  static constexpr int kBits = 16;  // 4 MB: a newer piece takes the place of an older one
  struct Key {
    char bytes[kMostBytes + 1] = {};  // the last is the size; of no piece is it 0
  };
  struct alignas(64) Entry {
    Key key;
    uint32_t count = 0;
    uint32_t tokens[kMostTokens] = {};
  };

  static size_t place(const Key& key) {
    uint64_t words[3];
    static_assert(sizeof words == sizeof key);
    std::memcpy(words, &key, sizeof key);
    const uint64_t mixed = (words[0] * 0x9e3779b97f4a7c15 ^ words[1] * 0xc2b2ae3d27d4eb4f) + words[2];
    return (mixed ^ mixed >> 29) * 0xbf58476d1ce4e5b9 >> (64 - kBits);
  }

  std::vector<Entry> entries_ = std::vector<Entry>(size_t{1} << kBits);
};

}  // namespace startrail

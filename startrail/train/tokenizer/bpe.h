// Byte-level BPE, the model of a tokenizer.json: one piece of text to the ids of its merged tokens, and what each id
// stands for. Used by tokenizer.cc only.
#pragma once

#include <array>
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace startrail {

// Which pairs of tokens merge, and to what. A flat table: most of the time of BPE is spent looking here.
class Merges {
 public:
  static constexpr uint32_t kNone = UINT32_MAX;
  struct Merge {
    uint32_t rank = kNone;  // the lowest of a piece goes first; kNone: they don't
    uint32_t token = 0;
  };

  void reserve(size_t count);                            // before any set, and all that will be
  void set(uint32_t left, uint32_t right, Merge merge);  // over what the pair had
  Merge find(uint32_t left, uint32_t right) const { return entries_[place(key_of(left, right))].merge; }

 private:
  struct Entry {
    uint64_t key = UINT64_MAX;  // no pair
    Merge merge;
  };
  static uint64_t key_of(uint32_t left, uint32_t right) { return uint64_t{left} << 32 | right; }
  // Of the entry of the key, or of the one it would have.
  size_t place(uint64_t key) const {
    size_t at = key * 0x9e3779b97f4a7c15 >> shift_;
    while (entries_[at].key != key && entries_[at].key != UINT64_MAX) at = (at + 1) & (entries_.size() - 1);
    return at;
  }
  std::vector<Entry> entries_ = std::vector<Entry>(2);
  int shift_ = 63;
};

struct Bpe {
  std::unordered_map<std::string, int64_t> vocabulary;  // by the text of the file, where each byte is a letter
  std::unordered_map<int64_t, std::string> bytes;       // what each id stands for
  std::array<int64_t, 256> byte_tokens{};               // the id of each single byte, -1 where there is none
  Merges merges;
  bool ignore_merges = false;  // a piece that is a token needs no merges
};

// From the file's "model". UserError for another kind of model; its json::exception when it is not one at all.
Bpe make_bpe(const nlohmann::json& model);

// Appends the tokens of one piece. UserError when a byte has no token.
void encode_piece(const Bpe& bpe, std::string_view piece, std::vector<uint32_t>& tokens);

// UserError when `token`, as a message names it, has an id that no vocabulary has.
void check_id(std::string_view token, int64_t id);

// "ByteLevel" from {"type": "ByteLevel", ...}, for messages and to tell parts of the file apart; "null" from null.
std::string type_of(const nlohmann::json& part);

}  // namespace startrail

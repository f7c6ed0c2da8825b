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

struct Bpe {
  struct Merge {
    int64_t rank;  // the lowest of a piece goes first
    int64_t token;
  };

  std::unordered_map<std::string, int64_t> vocabulary;  // by the text of the file, where each byte is a letter
  std::unordered_map<int64_t, std::string> bytes;       // what each id stands for
  std::array<int64_t, 256> byte_tokens{};               // the id of each single byte, -1 where there is none
  std::unordered_map<uint64_t, Merge> merges;           // by left id << 32 | right id
  bool ignore_merges = false;                           // a piece that is a token needs no merges
};

// From the file's "model". UserError for another kind of model; its json::exception when it is not one at all.
Bpe make_bpe(const nlohmann::json& model);

// Appends the tokens of one piece. UserError when a byte has no token.
void encode_piece(const Bpe& bpe, std::string_view piece, std::vector<int64_t>& tokens);

// UserError when `token`, as a message names it, has an id that no vocabulary has.
void check_id(std::string_view token, int64_t id);

// "ByteLevel" from {"type": "ByteLevel", ...}, for messages and to tell parts of the file apart; "null" from null.
std::string type_of(const nlohmann::json& part);

}  // namespace startrail

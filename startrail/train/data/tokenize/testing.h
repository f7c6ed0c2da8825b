// For tests: a small tokenizer, packed files, and token files read back as text.
#pragma once

#include <zlib.h>
#include <zstd.h>

#include <cstring>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "startrail/base/error.h"
#include "startrail/train/data/tokens/token_folder.h"

namespace startrail {

// A tokenizer.json whose first 256 ids are the bytes, then "the", " the" and the end token; cut as GPT-2 does.
inline std::string small_tokenizer(const std::string& end = "<|endoftext|>") {
  using nlohmann::json;
  json vocabulary;
  int next = 256;
  for (int byte = 0; byte < 256; ++byte) {
    const bool visible = (byte >= '!' && byte <= '~') || (byte >= 0xa1 && byte <= 0xac) || byte >= 0xae;
    const int point = visible ? byte : next++;
    std::string letter;
    if (point >= 0x80) letter += static_cast<char>(0xc0 | point >> 6);
    letter += static_cast<char>(point < 0x80 ? point : 0x80 | (point & 0x3f));
    vocabulary[letter] = byte;
  }
  for (const char* token : {"th", "the", "\u0120the"}) vocabulary[token] = vocabulary.size();
  return json{{"added_tokens", {{{"id", 259}, {"content", end}, {"special", true}, {"normalized", false}}}},
              {"normalizer", nullptr},
              {"pre_tokenizer", {{"type", "ByteLevel"}, {"add_prefix_space", false}}},
              {"decoder", {{"type", "ByteLevel"}}},
              {"model", {{"type", "BPE"}, {"vocab", vocabulary}, {"merges", {"t h", "th e", "\u0120 the"}}}}}
      .dump();
}

inline std::string read_bytes(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

// All tokens of a folder made with small_tokenizer(), the end token as "|".
inline std::string text_of_tokens(const std::string& folder) {
  std::string text;
  for (const TokenFile& file : read_token_folder(folder).files) {
    const std::string bytes = read_bytes(folder + "/" + file.name);
    for (size_t at = 0; at < bytes.size(); at += 2) {
      uint16_t token;
      std::memcpy(&token, bytes.data() + at, sizeof token);
      constexpr const char* kLong[] = {"th", "the", " the", "|"};
      token < 256 ? text.append(1, static_cast<char>(token)) : text.append(kLong[token - 256]);
    }
  }
  return text;
}

inline std::string gzip(std::string_view text) {
  z_stream state{};
  STARTRAIL_CHECK(deflateInit2(&state, 6, Z_DEFLATED, MAX_WBITS + 16, 8, Z_DEFAULT_STRATEGY) == Z_OK, "gzip");
  std::string packed(deflateBound(&state, text.size()), '\0');
  state.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(text.data()));
  state.avail_in = static_cast<uInt>(text.size());
  state.next_out = reinterpret_cast<Bytef*>(packed.data());
  state.avail_out = static_cast<uInt>(packed.size());
  STARTRAIL_CHECK(deflate(&state, Z_FINISH) == Z_STREAM_END, "gzip");
  packed.resize(state.total_out);
  deflateEnd(&state);
  return packed;
}

inline std::string zstd(std::string_view text) {
  std::string packed(ZSTD_compressBound(text.size()), '\0');
  packed.resize(ZSTD_compress(packed.data(), packed.size(), text.data(), text.size(), 3));
  return packed;
}

}  // namespace startrail

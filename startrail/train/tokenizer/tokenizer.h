// Text to token ids and back with a Hugging Face tokenizer.json of the byte-level BPE kind (GPT-2, Llama 3, Qwen, ...).
// Used by `startrail sample` and `startrail tokenize`. Other kinds are refused. The file's post_processor, truncation
// and padding are ignored.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace startrail {

class PieceMemo;

class Tokenizer {
 public:
  // A tokenizer.json, or a folder that holds one. UserError for a file that is not one, or of a kind not supported,
  // saying which.
  explicit Tokenizer(const std::filesystem::path& path);
  ~Tokenizer();

  // Adds no special token (such as one for the beginning), but takes those that the text spells out. Bytes that are not
  // UTF-8 are encoded too. UserError when the vocabulary lacks a byte.
  std::vector<int64_t> encode(std::string_view text) const;
  // The same, appended, for much text: `memo` is the thread's own and has served no other tokenizer.
  void encode(std::string_view text, PieceMemo& memo, std::vector<uint32_t>& tokens) const;
  // Whether text that is cut after a line end, where visible ASCII letters are before and after it, has the same
  // tokens.
  bool splits_at_lines() const;
  // Special tokens are spelled out; ids without a token give nothing. Bytes that are not whole UTF-8 are passed
  // through: a caller that streams may hold them back.
  std::string decode(const std::vector<int64_t>& tokens) const;
  // The id of a token, by how it is spelled in the file; nothing when there is none.
  std::optional<int64_t> find(const std::string& token) const;
  int64_t vocabulary() const;  // one more than the largest id

 private:
  struct State;
  std::unique_ptr<const State> state_;
};

}  // namespace startrail

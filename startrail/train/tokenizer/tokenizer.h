// Text to token ids and back with a Hugging Face tokenizer.json of the byte-level BPE kind (GPT-2, Llama 3, Qwen, ...).
// Used by `startrail sample`. Other kinds are refused. The file's post_processor, truncation and padding are ignored.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace startrail {

class Tokenizer {
 public:
  // A tokenizer.json, or a folder that holds one. UserError for a file that is not one, or of a kind not supported,
  // saying which.
  explicit Tokenizer(const std::filesystem::path& path);
  ~Tokenizer();

  // Adds no special token (such as one for the beginning), but takes those that the text spells out. Bytes that are not
  // UTF-8 are encoded too. UserError when the vocabulary lacks a byte, or when the file asks for NFC and the text has
  // combining marks or other letters that NFC may change.
  std::vector<int64_t> encode(std::string_view text) const;
  // Special tokens are spelled out; ids without a token give nothing. Bytes that are not whole UTF-8 are passed
  // through: a caller that streams may hold them back.
  std::string decode(const std::vector<int64_t>& tokens) const;
  int64_t vocabulary() const;  // one more than the largest id

 private:
  struct State;
  std::unique_ptr<const State> state_;
};

}  // namespace startrail

// A folder of token files with a tokens.json that says all about them, as `startrail tokenize` writes it and training
// reads it. The files are little-endian numbers without a header, documents one after the other, each followed by the
// end token.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace startrail {

inline constexpr const char* kTokensFile = "tokens.json";
inline constexpr const char* kTokenizerFile = "tokenizer.json";
inline constexpr const char* kJournalFile = ".tokenize.json";  // of what `startrail tokenize` has finished so far

struct TokenFile {
  std::string name;  // in the folder
  int64_t tokens = 0, documents = 0;
  std::string checksum;  // of all its bytes

  bool operator==(const TokenFile&) const = default;
};

struct TokenFolder {
  std::string type;  // "uint16" or "uint32"
  int64_t vocabulary = 0;
  int64_t end_token = -1;
  std::string tokenizer;       // its name
  std::string tokenizer_hash;  // of its tokenizer.json
  std::vector<TokenFile> files;

  int64_t token_bytes() const { return type == "uint16" ? 2 : 4; }
  bool operator==(const TokenFolder&) const = default;
};

bool is_token_folder(const std::filesystem::path& folder);
// UserError for what will be such a folder, or was one: without tokens.json its files would be taken for text.
void check_not_unfinished(const std::filesystem::path& folder);

// UserError, in one sentence with the file, for what is no such description, and for a token file that is missing or
// not as long as it says. Checksums are not compared.
TokenFolder read_token_folder(const std::filesystem::path& folder);

// Puts tokens.json into the folder in one step: it is there whole, or as it was.
void write_token_folder(const std::filesystem::path& folder, const TokenFolder& tokens);

}  // namespace startrail

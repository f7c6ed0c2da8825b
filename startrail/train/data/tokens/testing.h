// For tests: files of tokens, and folders of them with a tokens.json. Not used by the library.
#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "startrail/base/file.h"
#include "startrail/base/testing.h"
#include "startrail/train/data/tokens/token_folder.h"

namespace startrail {

// The bytes of a token file without a header.
inline std::string token_bytes(const std::vector<uint16_t>& tokens) {
  return {reinterpret_cast<const char*>(tokens.data()), tokens.size() * sizeof(uint16_t)};
}

inline std::string wide_bytes(const std::vector<uint32_t>& tokens) {
  return {reinterpret_cast<const char*>(tokens.data()), tokens.size() * sizeof(uint32_t)};
}

// A token file with a header as llm.c writes it.
inline std::string llmc_file(uint32_t magic, uint32_t version, uint32_t count, const std::string& tokens) {
  std::string header(1024, '\0');
  const uint32_t numbers[] = {magic, version, count};
  std::memcpy(header.data(), numbers, sizeof numbers);
  return header + tokens;
}

// Documents, each of which gets its end token, as a file `name` of a token folder, beside those it has already. The
// tokenizer's file is written by the caller.
inline void add_documents(const TempFolder& folder, const std::string& where, const std::string& name,
                          const std::vector<std::vector<uint32_t>>& documents, TokenFolder told) {
  std::vector<uint32_t> all;
  for (const auto& document : documents) {
    all.insert(all.end(), document.begin(), document.end());
    all.push_back(static_cast<uint32_t>(told.end_token));
  }
  const std::string bytes =
      told.type == "uint32" ? wide_bytes(all) : token_bytes(std::vector<uint16_t>(all.begin(), all.end()));
  folder.write(where + "/" + name, bytes);
  if (is_token_folder(folder.path(where))) told.files = read_token_folder(folder.path(where)).files;
  told.files.push_back({name, static_cast<int64_t>(all.size()), static_cast<int64_t>(documents.size()),
                        checksum(bytes.data(), bytes.size())});
  write_token_folder(folder.path(where), told);
}

}  // namespace startrail

#include "startrail/train/data/tokens/token_folder.h"

#include <nlohmann/json.hpp>

#include "startrail/base/error.h"
#include "startrail/base/file.h"

namespace startrail {

namespace fs = std::filesystem;
using nlohmann::json;

bool is_token_folder(const fs::path& folder) { return fs::exists(folder / kTokensFile); }

void check_not_unfinished(const fs::path& folder) {
  const bool begun = fs::exists(folder / kJournalFile);
  if (begun || (fs::exists(folder / "tokens-00000.bin") && fs::exists(folder / kTokenizerFile)))
    throw UserError(cat(folder.string(), " is of startrail tokenize (", begun ? kJournalFile : "tokens-00000.bin",
                        "), but has no ", kTokensFile, ", which comes last: give that command again, and it goes on"));
}

namespace {

void check_file(const fs::path& path, const TokenFile& file, int64_t token_bytes) {
  std::error_code error;
  const auto bytes = static_cast<int64_t>(fs::file_size(path, error));
  if (error)
    throw UserError(cat(path.string(), " cannot be read (", error.message(), "), but ", kTokensFile, " names it"));
  if (bytes != file.tokens * token_bytes)
    throw UserError(cat(path.string(), " has ", bytes, " bytes, but ", kTokensFile, " says ", file.tokens,
                        " tokens of ", token_bytes, " bytes: tokenize again"));
}

}  // namespace

TokenFolder read_token_folder(const fs::path& folder) {
  const fs::path path = folder / kTokensFile;
  const json found = read_json(path);
  TokenFolder tokens;
  try {
    if (found.at("version") != 1)
      throw UserError(cat(path.string(), " is of version ", found.at("version").dump(), ", but this program reads 1"));
    tokens.type = found.at("type");
    tokens.vocabulary = found.at("vocabulary");
    tokens.end_token = found.at("end_token");
    tokens.tokenizer = found.at("tokenizer").at("name");
    tokens.tokenizer_hash = found.at("tokenizer").at("hash");
    for (const json& one : found.at("files"))
      tokens.files.push_back({one.at("name"), one.at("tokens"), one.at("documents"), one.at("checksum")});
  } catch (const json::exception&) {
    throw UserError(cat(path.string(), " does not describe token files: tokenize again"));
  }
  if (tokens.type != "uint16" && tokens.type != "uint32")
    throw UserError(cat(path.string(), ": type '", tokens.type, "' is not known; valid: uint16, uint32"));
  for (const TokenFile& file : tokens.files) {
    if (file.name.empty() || file.name.find('/') != std::string::npos || file.name == "..")
      throw UserError(cat(path.string(), ": '", file.name, "' is not the name of a file in its folder"));
    check_file(folder / file.name, file, tokens.token_bytes());
  }
  return tokens;
}

void write_token_folder(const fs::path& folder, const TokenFolder& tokens) {
  json files = json::array();
  for (const TokenFile& file : tokens.files)
    files.push_back(
        {{"name", file.name}, {"tokens", file.tokens}, {"documents", file.documents}, {"checksum", file.checksum}});
  const json written{{"version", 1},
                     {"type", tokens.type},
                     {"vocabulary", tokens.vocabulary},
                     {"end_token", tokens.end_token},
                     {"tokenizer", {{"name", tokens.tokenizer}, {"hash", tokens.tokenizer_hash}}},
                     {"files", std::move(files)}};
  const fs::path fresh = folder / cat(".", kTokensFile);
  write_text(fresh, written.dump(1) + "\n");
  fs::rename(fresh, folder / kTokensFile);
  sync_folder(folder);
}

}  // namespace startrail

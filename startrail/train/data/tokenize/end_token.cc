#include "startrail/train/data/tokenize/end_token.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>

#include "startrail/base/error.h"
#include "startrail/base/file.h"

namespace startrail {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr const char* kUsual[] = {"<|endoftext|>", "<|end_of_text|>", "</s>", "<|eos|>", "<eos>"};

int64_t check_range(int64_t id, const Tokenizer& tokenizer, const std::string& origin) {
  if (id < 0 || id >= tokenizer.vocabulary())
    throw UserError(cat(origin, " ", id, " is not in the vocabulary: ids are 0 to ", tokenizer.vocabulary() - 1));
  return id;
}

std::optional<int64_t> from_name(const Tokenizer& tokenizer, const fs::path& folder) {
  const fs::path file = folder / "tokenizer_config.json";
  if (!fs::exists(file)) return std::nullopt;
  const json config = read_json(file);
  if (!config.is_object() || !config.contains("eos_token")) return std::nullopt;
  json name = config.at("eos_token");
  if (name.is_object()) name = name.value("content", json());
  return name.is_string() ? tokenizer.find(name.get<std::string>()) : std::nullopt;
}

std::optional<int64_t> from_id(const Tokenizer& tokenizer, const fs::path& file) {
  if (!fs::exists(file)) return std::nullopt;
  const json config = read_json(file);
  if (!config.is_object() || !config.contains("eos_token_id")) return std::nullopt;
  json id = config.at("eos_token_id");
  if (id.is_array() && !id.empty()) id = id[0];
  if (!id.is_number_integer()) return std::nullopt;
  return check_range(id.get<int64_t>(), tokenizer, cat("the eos_token_id of ", file.string()));
}

}  // namespace

fs::path tokenizer_file(const fs::path& path) {
  std::error_code ignored;  // what is not there is met when it is opened
  return fs::is_directory(path, ignored) ? path / "tokenizer.json" : path;
}

fs::path tokenizer_folder(const fs::path& path) { return fs::absolute(tokenizer_file(path)).parent_path(); }

int64_t find_end_token(const Tokenizer& tokenizer, const fs::path& path, const std::string& wanted) {
  if (!wanted.empty()) {
    // A number is an id: that many vocabularies also spell "0" and "10" as tokens of text is not what is meant.
    if (std::ranges::all_of(wanted, [](char letter) { return letter >= '0' && letter <= '9'; }))
      return check_range(parse_int(wanted, "--end-token"), tokenizer, "--end-token");
    if (const auto found = tokenizer.find(wanted)) return *found;
    throw UserError(
        cat("--end-token ", wanted, " is no token of ", path.string(), ": give one as it spells it, or an id"));
  }
  const fs::path folder = tokenizer_folder(path);
  if (const auto found = from_name(tokenizer, folder)) return *found;
  for (const char* name : {"generation_config.json", "config.json"})
    if (const auto found = from_id(tokenizer, folder / name)) return *found;
  for (const char* name : kUsual)
    if (const auto found = tokenizer.find(name)) return *found;
  throw UserError(cat("no end token is known of ", path.string(),
                      ": there is no eos_token in a tokenizer_config.json beside it, and no token ", join(kUsual),
                      "; give --end-token with a token or an id"));
}

}  // namespace startrail

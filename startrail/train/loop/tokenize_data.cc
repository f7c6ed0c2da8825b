#include "startrail/train/loop/tokenize_data.h"

#include <utility>
#include <vector>

#include "startrail/base/error.h"
#include "startrail/train/loop/checkpoint.h"

namespace startrail {
namespace {

namespace fs = std::filesystem;

// Each path that is given, and the folder of its tokens.
std::vector<std::pair<std::string*, fs::path>> folders_of(TrainConfig& config) {
  const fs::path run = config.run.folder;
  std::vector<std::pair<std::string*, fs::path>> all{{&config.data.path, run / "tokens"}};
  if (!config.data.validation_path.empty()) all.emplace_back(&config.data.validation_path, run / "validation-tokens");
  return all;
}

}  // namespace

void tokenize_data(TrainConfig config, const std::string& tokenizer, const TokenizeObserver& observer) {
  if (is_dit(config)) throw UserError("--tokenizer is for a GPT, which learns text: leave it out for a DiT");
  for (const auto& [path, folder] : folders_of(config)) {
    if (fs::weakly_canonical(*path) == fs::weakly_canonical(folder)) continue;  // a run that goes on
    if (is_token_folder(*path)) throw UserError(cat(*path, " holds tokens, not text: leave out --tokenizer"));
    tokenize({.paths = {*path},
              .tokenizer = tokenizer,
              .out = folder,
              .leave_out = config.run.folder,
              .replace = !has_checkpoint(config.run.folder),  // a run keeps the tokens it learned
              .threads = static_cast<int>(config.parallel.threads),
              .otherwise =
                  "a run goes on with the tokens it has learned: put back what was there, or begin another run with "
                  "another run.folder"},
             observer);
  }
}

TrainConfig with_tokens(TrainConfig config) {
  for (const auto& [path, folder] : folders_of(config)) *path = folder.string();
  return config;
}

}  // namespace startrail

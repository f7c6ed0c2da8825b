// startrail tokenize: text to token files, once, for many runs.
#include <CLI/CLI.hpp>

#include <chrono>
#include <iostream>
#include <nlohmann/json.hpp>

#include "cli/command.h"
#include "cli/full_disk.h"
#include "cli/tokenize_progress.h"
#include "cli/world.h"
#include "startrail/base/error.h"
#include "startrail/train/data/tokenize/tokenize.h"

namespace startrail::cli {
namespace {

using nlohmann::json;

struct TokenizeFlags {
  TokenizeOptions options;
  std::string tokenizer, out, on_error = "stop";
  double shard_mb = 256;
  bool json = false;
};

json to_json(const TokenizeResult& result, const TokenizeFlags& flags, double seconds) {
  json files = json::array();
  for (const TokenFile& file : result.folder.files) files.push_back(file.name);
  return {{"out", flags.out},
          {"type", result.folder.type},
          {"vocabulary", result.folder.vocabulary},
          {"end_token", result.folder.end_token},
          {"token_files", files},
          {"files", result.files},
          {"file_bytes", result.bytes},
          {"left_out", result.left_out},
          {"documents", result.documents},
          {"tokens", result.tokens},
          {"text_bytes", result.text_bytes},
          {"skipped", result.skipped},
          {"kept_tokens", result.kept_tokens},
          {"was_done", result.was_done},
          {"seconds", seconds}};
}

void print_summary(const TokenizeResult& result, const TokenizeFlags& flags, double seconds) {
  const auto line = [](const std::string& name, const auto&... values) {
    std::cout << "  " << name << std::string(18 - name.size(), ' ') << cat(values...) << "\n";
  };
  const TokenFolder& folder = result.folder;
  std::cout << (result.was_done ? "already done: " : "") << plural(result.files, "file") << " of text, "
            << human_bytes(static_cast<double>(result.bytes)) << ", as tokens in " << flags.out << "\n";
  if (result.left_out > 0) line("left out", plural(result.left_out, "binary file"));
  line("documents", counted(result.documents));
  if (result.skipped > 0) line("skipped", plural(result.skipped, "document"), " that could not be taken");
  line("tokens", counted(result.tokens), " (", folder.type, "), in ", plural(std::ssize(folder.files), "file"));
  if (result.tokens > 0)
    line("bytes per token", fixed(static_cast<double>(result.text_bytes) / static_cast<double>(result.tokens), 2),
         " of text");
  line("tokenizer", folder.tokenizer, ", vocabulary ", counted(folder.vocabulary), ", end token ", folder.end_token);
  if (!result.was_done && result.kept_tokens > 0)
    line("kept", counted(result.kept_tokens), " tokens of an earlier run");
  if (!result.was_done)
    line("time", fixed(seconds, 1), " s",
         result.kept_tokens > 0
             ? ""
             : cat(", ", fixed(static_cast<double>(result.text_bytes) / 1e6 / seconds, 1), " MB of text a second"));
  std::cout << "train on it with: " << program_invocation_name << " train --set data.path=" << flags.out << "\n";
}

void run(TokenizeFlags& flags) {
  refuse_many("tokenize");
  TokenizeOptions& options = flags.options;
  options.tokenizer = flags.tokenizer;
  options.out = flags.out;
  options.skip = flags.on_error == "skip";
  options.shard_bytes = static_cast<int64_t>(flags.shard_mb * 1e6);
  const auto begin = std::chrono::steady_clock::now();
  const TokenizeResult result = [&] {
    TokenizeDisplay display;
    return advise_on_room("make room and give the command again: it goes on after the token files that are finished",
                          [&] { return tokenize(options, display.observer()); });
  }();
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  if (flags.json)
    std::cout << to_json(result, flags, seconds).dump(2) << "\n";
  else
    print_summary(result, flags, seconds);
}

}  // namespace

void add_tokenize(CLI::App& app) {
  auto flags = std::make_shared<TokenizeFlags>();
  CLI::App* command = app.add_subcommand("tokenize", "Turn text into token files to train on");
  TokenizeOptions& options = flags->options;
  command
      ->add_option("text", options.paths,
                   "Files and folders: .jsonl (a document in each line), other text (a document in each file), and "
                   "both packed as .gz or .zst")
      ->required()
      ->type_name("PATH ...");
  command
      ->add_option("--tokenizer", flags->tokenizer,
                   "A tokenizer.json of byte-level BPE (GPT-2, Llama 3, Qwen ...), or a folder that holds one")
      ->required()
      ->type_name("FOLDER");
  command->add_option("--out", flags->out, "The folder for the tokens: new, or one to go on with")
      ->required()
      ->type_name("FOLDER");
  command->add_option("--text-field", options.text_field, "The field of a .jsonl line that holds its text")
      ->capture_default_str()
      ->type_name("NAME");
  command
      ->add_option("--end-token", options.end_token,
                   "What follows each document, an id (any number is one) or a token; the tokenizer's own end of text "
                   "without it")
      ->type_name("TOKEN");
  command
      ->add_option("--on-error", flags->on_error,
                   "At a line that is not JSON, has no such field or is not UTF-8: stop, or skip it and count it")
      ->capture_default_str()
      ->check(CLI::IsMember({"stop", "skip"}));
  command->add_option("--threads", options.threads, "Cores to use; all without it")->check(CLI::Range(1, 1024));
  command->add_option("--shard-mb", flags->shard_mb, "MB of text for each token file: a kill costs no more than one")
      ->capture_default_str()
      ->check(CLI::Range(0.001, 1e6))
      ->type_name("MB");
  command->add_flag("--replace", options.replace, "Replace finished tokens of other text or settings in --out");
  command->add_flag("--json", flags->json, "Print the result as JSON");
  command->footer(
      "Example: startrail tokenize --tokenizer Qwen3-0.6B --out data corpus.jsonl.zst books/\n"
      "         startrail train --set data.path=data\n"
      "After Ctrl-C or a kill the same command goes on; the tokens are the same, on any number of threads.\n"
      "They are those of Hugging Face's tokenizers without special tokens added, and an end token after each "
      "document.");
  command->callback([flags] { run(*flags); });
}

}  // namespace startrail::cli

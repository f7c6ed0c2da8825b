// startrail evaluate: the loss of a trained model on held-out data.
#include <CLI/CLI.hpp>
#include <iostream>
#include <nlohmann/json.hpp>

#include "cli/command.h"
#include "cli/model_flags.h"
#include "cli/shape.h"
#include "cli/world.h"
#include "startrail/base/error.h"
#include "startrail/train/loop/checkpoint.h"
#include "startrail/train/loop/evaluate.h"

namespace startrail::cli {
namespace {

struct EvaluateFlags {
  CommFlags comm;
  std::string checkpoint, data, dtype = "float32", grid = "auto";
  int64_t tokens = 0, windows = 0;
  int ranks = 1;
  CLI::Option* ranks_option = nullptr;
  std::optional<int64_t> buckets;
  bool json = false, recognise = false, last = false;
  std::optional<double> guidance;
};

nlohmann::json to_json(const Evaluation& result) {
  nlohmann::json json{{"loss", result.loss}, {"sequences", result.sequences}};
  if (!result.by_position.empty()) {
    json["tokens"] = result.tokens;
    json["by_position"] = result.by_position;
    return json;
  }
  json["skipped"] = result.skipped.size();
  if (!result.recognition) return json;
  json["classifier_accuracy"] = result.recognition->accuracy;
  json["recognised"] = result.recognition->recognised;
  for (const auto& [name, share] : result.recognition->by_class) json["recognised_by_class"][name] = share;
  return json;
}

void print_positions(const Evaluation& result) {
  std::cout << "loss " << fixed(result.loss, 4) << " nats a token, " << result.sequences << " sequences of "
            << result.tokens << " tokens\n\n";
  const auto buckets = static_cast<int64_t>(result.by_position.size());
  std::vector<std::vector<std::string>> rows{{"positions", "loss"}};
  for (int64_t i = 0; i < buckets; ++i)
    rows.push_back({cat(result.tokens * i / buckets, " to ", result.tokens * (i + 1) / buckets - 1),
                    fixed(result.by_position[static_cast<size_t>(i)], 4)});
  std::cout << table(rows);
}

void print_pictures(const Evaluation& result) {
  std::cout << "loss " << fixed(result.loss, 4) << " mean square, " << result.sequences << " sequences, "
            << (result.mean_weights ? "the mean of the weights" : "the last weights") << "\n";
  if (!result.skipped.empty())
    std::cout << "left out, as they could not be used: " << plural(static_cast<int64_t>(result.skipped.size()), "item")
              << "; the first: " << result.skipped.front() << "\n";
  if (!result.recognition) return;
  const Recognition& seen = *result.recognition;
  std::cout << "a classifier trained on the same pictures is right about " << fixed(100 * seen.accuracy, 1)
            << "% of held-out ones,\nand recognises " << fixed(100 * seen.recognised, 1) << "% of " << seen.drawn
            << " drawn ones (guidance " << seen.guidance << ")\n\n";
  std::vector<std::vector<std::string>> rows{{"class", "recognised"}};
  for (const auto& [name, share] : seen.by_class) rows.push_back({name, fixed(100 * share, 1) + "%"});
  std::cout << table(rows);
}

void run_evaluate(EvaluateFlags& flags) {
  ProcessWorld* const processes = flags.comm.open();
  set_ranks(flags.ranks, *flags.ranks_option, processes);
  std::optional<Progress> progress;
  EvaluateOptions options;
  const auto folder = [&] { return model_folder(flags.checkpoint).string(); };
  options.folder = processes ? processes->once(folder) : folder();
  options.data = flags.data;
  options.tokens = flags.tokens;
  options.windows = flags.windows;
  options.buckets = flags.buckets;
  options.recognise = flags.recognise;
  options.guidance = flags.guidance;
  options.type = parse_type(flags.dtype, "dtype");
  options.which = which(flags.last);
  options.sharing = {.ranks = flags.ranks, .grid = flags.grid};
  options.on_progress = [&](const std::string& what) {
    progress ? progress->show(what) : void(progress.emplace(what));
  };
  options.on_warning = [](const std::string& what) { std::cerr << "startrail: warning: " << what << "\n"; };
  const Evaluation result = evaluate(options, processes);
  progress.reset();  // wiped before the result is shown
  if (flags.json)
    std::cout << to_json(result).dump(2) << "\n";
  else if (!result.by_position.empty())
    print_positions(result);
  else
    print_pictures(result);
}

}  // namespace

void add_evaluate(CLI::App& app) {
  auto flags = std::make_shared<EvaluateFlags>();
  CLI::App* command = app.add_subcommand("evaluate", "Loss of a checkpoint on held-out data; a GPT's also by position");
  command->add_option("--checkpoint", flags->checkpoint, kCheckpointHelp)->required()->type_name("FOLDER");
  command
      ->add_option("--data", flags->data,
                   "GPT: text or token files; DiT: pictures, latents or the word shapes; otherwise the run's own "
                   "validation data")
      ->type_name("PATH");
  command->add_option("--tokens", flags->tokens, "GPT: length of a sequence; 0: as in training")
      ->check(CLI::Range(int64_t{0}, kMostGiven))
      ->capture_default_str();
  command->add_option("--windows", flags->windows, "Sequences used; 0: all")
      ->check(CLI::Range(int64_t{0}, kMostGiven))
      ->capture_default_str();
  command->add_option("--buckets", flags->buckets, "GPT: parts of the sequence whose loss is shown; otherwise 16")
      ->check(CLI::Range(1, 4096));
  command->add_flag("--recognise", flags->recognise,
                    "DiT: also train a classifier on the data, and say how many drawn pictures it recognises");
  command->add_option("--guidance", flags->guidance, "DiT: of these pictures; otherwise as in sample");
  flags->ranks_option =
      command->add_option("--ranks", flags->ranks, "Ranks that share a sequence")->capture_default_str();
  command->add_option("--grid", flags->grid, "How they share it, as in train")->capture_default_str();
  flags->comm.add_to(*command);
  command->add_flag("--last", flags->last, kLastHelp);
  command->add_option("--dtype", flags->dtype, "float32 or bfloat16")->capture_default_str();
  command->add_flag("--json", flags->json, "Print the result as JSON");
  command->footer("Example: startrail evaluate --checkpoint runs/gpt --buckets 8");
  command->callback([flags] { run_evaluate(*flags); });
}

}  // namespace startrail::cli

// startrail sample: text or pictures from a trained model.
#include <ATen/Parallel.h>
#include <CLI/CLI.hpp>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <variant>

#include "cli/command.h"
#include "cli/model_flags.h"
#include "cli/shape.h"
#include "cli/world.h"
#include "startrail/base/error.h"
#include "startrail/base/file.h"
#include "startrail/base/threads.h"
#include "startrail/train/loop/checkpoint.h"
#include "startrail/train/loop/draw_pictures.h"
#include "startrail/train/loop/sample_text.h"
#include "startrail/train/model/picture_classes.h"

namespace startrail::cli {
namespace {

namespace fs = std::filesystem;

struct SampleFlags {
  CommFlags comm;
  std::string checkpoint, tokenizer, dtype = "float32";
  std::vector<std::string> prompts, prompt_files;
  SampleOptions options;
  bool last = false, json = false;
  // Of a DiT.
  std::string out = "samples.png", classes, grid = "auto";
  int64_t count = 4, steps = 50;
  int ranks = 1;
  std::optional<double> guidance;
};

// All of it, but for the newline that ends its last line.
std::string read_prompt(std::istream& in, const std::string& name) {
  std::string text{std::istreambuf_iterator<char>(in), {}};
  if (in.bad()) throw UserError(cat(name, " cannot be read"));
  if (text.ends_with('\n')) text.pop_back();
  return text;
}

std::vector<std::string> read_prompts(const SampleFlags& flags) {
  std::vector<std::string> prompts;
  if (std::ranges::count(flags.prompts, "-") > 1) throw UserError("--prompt - takes all of stdin: give it once");
  for (const std::string& prompt : flags.prompts)
    prompts.push_back(prompt == "-" ? read_prompt(std::cin, "stdin") : prompt);
  for (const std::string& name : flags.prompt_files) {
    std::ifstream file(name, std::ios::binary);
    if (!file || fs::is_directory(name)) throw UserError(cat("--prompt-file ", name, " cannot be opened as a file"));
    prompts.push_back(read_prompt(file, name));
  }
  if (prompts.empty()) prompts = {""};
  return prompts;
}

nlohmann::json to_json(const std::vector<WrittenText>& texts) {
  nlohmann::json list = nlohmann::json::array();
  for (const WrittenText& text : texts)
    list.push_back({{"prompt", text.prompt}, {"prompt_ids", text.prompt_ids}, {"ids", text.ids}, {"text", text.text}});
  return list;
}

void write_sample(const SampleFlags& flags, const fs::path& folder) {
  at::set_num_threads(available_cores());
  const TextOptions options{
      .folder = folder,
      .prompts = read_prompts(flags),
      .tokenizer = flags.tokenizer,
      .sampling = flags.options,
      .type = parse_type(flags.dtype, "dtype"),
      .which = which(flags.last),
      .on_warning = [](const std::string& what) { std::cerr << "startrail: warning: " << what << "\n"; }};
  if (!flags.json) {
    size_t last = 0;
    sample_texts(options, [&](size_t number, std::string_view piece) {
      if (number != std::exchange(last, number)) std::cout << "\n\n";
      return static_cast<bool>(std::cout << piece << std::flush);
    });
    std::cout << "\n";
    return;
  }
  std::optional<Progress> progress("writing");
  const std::vector<WrittenText> texts = sample_texts(options, [&](size_t number, std::string_view) {
    progress->show(cat("writing text ", number + 1, " of ", options.prompts.size()));
    return true;
  });
  progress.reset();
  // Bytes that are no whole letter are replaced: JSON has text only.
  std::cout << to_json(texts).dump(2, ' ', false, nlohmann::json::error_handler_t::replace) << "\n";
}

void warn_of_empty(const std::vector<int64_t>& classes, const DitConfig& shape) {
  std::vector<int64_t> empty;
  for (int64_t one : classes)
    if (!has_data(one, shape)) empty.push_back(one);
  if (!empty.empty())
    std::cerr << "startrail: warning: the model had no data of " << (empty.size() > 1 ? "the classes " : "class ")
              << join(empty) << ", so it never learned what to draw\n";
}

// A picture for each class and count, drawn by any grid of ranks.
void draw_sample(const SampleFlags& flags, const fs::path& folder, ProcessWorld* processes) {
  const fs::path out = flags.out;
  const Drawing drawing = make_drawing({.folder = folder,
                                        .classes = flags.classes,
                                        .count = flags.count,
                                        .steps = flags.steps,
                                        .guidance = flags.guidance,
                                        .seed = flags.options.seed,
                                        .type = parse_type(flags.dtype, "dtype"),
                                        .which = which(flags.last),
                                        .sharing = {.ranks = flags.ranks, .grid = flags.grid}});
  const DitConfig& shape = drawing.shape;
  check_picture_file(out, shape);
  warn_of_empty(drawing.classes, shape);
  const bool writes = !processes || processes->first() == 0;
  if (writes && !out.parent_path().empty() && !fs::is_directory(out.parent_path()))
    throw UserError(cat("--out ", out.string(), " is in no folder that is there: make ", out.parent_path().string(),
                        " first, or give another"));
  if (writes) check_writable(out, "--out");
  std::optional<Progress> progress("drawing");
  const auto show = [&](double done) {
    progress->show(cat("drawing ", drawing.options.labels.size(), " pictures: ", fixed(100 * done, 0), "%"));
  };
  const at::Tensor pictures = draw_pictures(drawing, show, processes);
  progress.reset();
  if (!writes) return;
  write_pictures(out, pictures, flags.count);
  std::vector<std::string> names;
  for (int64_t one : drawing.classes) names.push_back(class_name(one, shape));
  std::cout << out.string() << ": " << pictures.size(0) << " pictures, a row for each of the classes " << join(names)
            << "; " << flags.steps << (shape.objective == "flow" ? " steps of Euler" : " steps of DDIM")
            << ", guidance " << drawing.options.guidance << "\n";
}

}  // namespace

void add_sample(CLI::App& app) {
  auto flags = std::make_shared<SampleFlags>();
  CLI::App* command = app.add_subcommand("sample", "Generate text, or draw pictures, from a checkpoint");
  command->add_option("--checkpoint", flags->checkpoint, kCheckpointHelp)->required()->type_name("FOLDER");
  command
      ->add_option("--prompt", flags->prompts,
                   "Text to go on from, or -: what stdin has; may be given many times; token ids such as 1,2,3 for a "
                   "model that is neither byte-level nor has a tokenizer")
      ->allow_extra_args(false)
      ->take_all()
      ->type_name("TEXT");
  command
      ->add_option("--prompt-file", flags->prompt_files,
                   "A file whose text to go on from, without the newline at its end; may be given many times")
      ->allow_extra_args(false)
      ->take_all()
      ->type_name("FILE");
  command
      ->add_option("--tokenizer", flags->tokenizer,
                   "A tokenizer.json (byte-level BPE), or the folder that holds it; otherwise the model's own")
      ->type_name("FILE");
  command
      ->add_option("--tokens", flags->options.tokens,
                   "Tokens to generate; fewer where a model with a tokenizer ends its text")
      ->capture_default_str();
  command->add_flag("--json", flags->json, "Print prompts, token ids and texts as JSON");
  command->add_option("--temperature", flags->options.temperature, "0 takes the likeliest")->capture_default_str();
  command->add_option("--top-k", flags->options.top_k, "Only the k likeliest; 0: all")->capture_default_str();
  command->add_option("--top-p", flags->options.top_p, "Only the likeliest that together have this probability")
      ->capture_default_str();
  command->add_option("--seed", flags->options.seed, "Of the draws")
      ->check(CLI::Range(int64_t{0}, kMostGiven))
      ->capture_default_str();
  command->add_option("--dtype", flags->dtype, "float32 or bfloat16")->capture_default_str();
  command->add_flag("--last", flags->last, kLastHelp);
  CLI::Option* out = command->add_option("--out", flags->out,
                                         "DiT: where the grid of pictures goes, a .png, or a "
                                         ".safetensors for the numbers");
  CLI::Option* classes = command->add_option(
      "--classes", flags->classes,
      "DiT: names or numbers such as cat,3 (where names are numbers too, give names only); -1: no class, for a model "
      "trained for that; otherwise the first 8 that had data");
  CLI::Option* count = command->add_option("--count", flags->count, "DiT: pictures of each class");
  CLI::Option* steps = command->add_option("--steps", flags->steps, "DiT: from noise to picture, 1 to 1000");
  CLI::Option* guidance = command->add_option(
      "--guidance", flags->guidance,
      "DiT: 1: none; more makes the class clearer; otherwise 4, or 1 for a model without classes or "
      "trained with data.class_dropout = 0");
  CLI::Option* ranks = command->add_option("--ranks", flags->ranks, "DiT: ranks that share a picture");
  CLI::Option* grid = command->add_option("--grid", flags->grid, "DiT: how they share it, as in train");
  for (CLI::Option* one : {out, classes, count, steps, guidance, ranks, grid}) one->capture_default_str();
  flags->comm.add_to(*command);
  command->footer(
      "Example: startrail sample --checkpoint runs/gpt --prompt '#include' --temperature 0.7\n"
      "         startrail sample --checkpoint runs/dit --classes 0,1 --count 8 --guidance 3 --out pictures.png");
  command->callback([flags, command, out, classes, count, steps, guidance, ranks, grid] {
    ProcessWorld* const processes = flags->comm.open();
    const auto find = [&] { return model_folder(flags->checkpoint).string(); };
    const fs::path folder = processes ? processes->once(find) : find();
    const bool dit = std::holds_alternative<DitConfig>(read_config(folder));
    // A flag of the other kind would be ignored.
    const std::vector<CLI::Option*> of_dit{out, classes, count, steps, guidance, ranks, grid};
    for (const CLI::Option* one : command->get_options()) {
      const std::string name = one->get_name();
      const bool both = name == "--checkpoint" || name == "--seed" || name == "--dtype" || name == "--last" ||
                        name == "--help" || name == "--comm" || name == "--timeout-s";
      const bool theirs = std::find(of_dit.begin(), of_dit.end(), one) != of_dit.end();
      if (one->count() > 0 && !both && theirs != dit)
        throw UserError(cat(name, " is for a ", dit ? "GPT" : "DiT", ", but ", folder.string(), " holds a ",
                            dit ? "DiT" : "GPT", ": leave it out"));
    }
    if (!dit && processes && processes->size() > 1)
      throw UserError(cat("a GPT writes its text on one rank, but ", launched_by()->launcher, " started ",
                          processes->size(), " processes: start it without a launcher, or give --comm local"));
    set_ranks(flags->ranks, *ranks, processes);
    dit ? draw_sample(*flags, folder, processes) : write_sample(*flags, folder);
  });
}

}  // namespace startrail::cli

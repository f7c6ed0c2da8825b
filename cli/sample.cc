// startrail sample, evaluate and export: what is done with a trained model.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <algorithm>
#include <cmath>
#include <filesystem>
#include <iostream>
#include <nlohmann/json.hpp>

#include "cli/command.h"
#include "cli/picture_classes.h"
#include "cli/picture_grid.h"
#include "cli/shape.h"
#include "cli/text_model.h"
#include "cli/train_job.h"
#include "startrail/base/error.h"
#include "startrail/run/comm/ranks.h"
#include "startrail/train/loop/checkpoint.h"
#include "startrail/train/loop/estimate.h"
#include "startrail/train/loop/recognise.h"
#include "startrail/train/loop/trainer.h"
#include "startrail/train/model/diffusion.h"
#include "startrail/train/model/weights.h"
#include "startrail/train/tokenizer/tokenizer.h"

namespace startrail::cli {
namespace {

namespace fs = std::filesystem;

// --- sample

struct SampleFlags {
  std::string checkpoint, prompt, tokenizer, dtype = "float32";
  SampleOptions options;
  bool last = false;
  // Of a DiT.
  std::string out = "samples.png", classes, grid = "auto";
  int64_t count = 4, steps = 50;
  int ranks = 1;
  std::optional<double> guidance;
};

Which which(bool last) { return last ? Which::last : Which::mean; }

std::vector<int64_t> parse_tokens(const std::string& text) {
  std::vector<int64_t> tokens;
  for (const std::string& part : split(text, ',')) tokens.push_back(parse_int(part, "token"));
  return tokens;
}

void write_text_sample(const SampleFlags& flags, const fs::path& folder) {
  check_options(flags.options);
  at::set_num_threads(thread_count({}));
  const auto model = load_llama(folder, parse_type(flags.dtype, "dtype"), which(flags.last));
  std::unique_ptr<Tokenizer> tokenizer;
  if (!flags.tokenizer.empty()) tokenizer = std::make_unique<Tokenizer>(flags.tokenizer);
  if (tokenizer && tokenizer->vocabulary() > model->shape().vocabulary)
    throw UserError(cat("the tokenizer has ", tokenizer->vocabulary(), " tokens, but the model's vocabulary is ",
                        model->shape().vocabulary));
  const bool bytes = !tokenizer && model->shape().vocabulary == 256;
  std::vector<int64_t> prompt;
  if (tokenizer)
    prompt = tokenizer->encode(flags.prompt);
  else if (bytes)
    prompt.assign(reinterpret_cast<const unsigned char*>(flags.prompt.data()),
                  reinterpret_cast<const unsigned char*>(flags.prompt.data()) + flags.prompt.size());
  else
    prompt = parse_tokens(flags.prompt);
  if (prompt.empty() && bytes) prompt = {0};  // the end of the document before: a new one begins
  if (prompt.empty())
    throw UserError("this model is not byte-level: give --prompt token ids such as 1,2,3, or --tokenizer");

  const LlamaConfig& shape = model->shape();
  check_prompt(prompt, shape.vocabulary);  // before it is printed
  const double each = 2.0 * static_cast<double>(shape.layers * shape.key_heads * shape.head_dim) *
                      static_cast<double>(c10::elementSize(parse_type(flags.dtype, "dtype")));
  const double room = static_cast<double>(available_memory()) / each - static_cast<double>(prompt.size());
  if (static_cast<double>(flags.options.tokens) > room)
    throw UserError(cat("--tokens ", flags.options.tokens, " need ",
                        human_bytes(each * static_cast<double>(flags.options.tokens)),
                        " for keys and values, which is not free: give ", fixed(std::max(0.0, room), 0), " or fewer"));

  std::cout << flags.prompt << std::flush;
  bool first = flags.prompt.empty();
  std::vector<int64_t> drawn;
  size_t printed = 0;
  generate(*model, prompt, flags.options, [&](int64_t token) {
    if (bytes) {
      std::cout << static_cast<char>(token);
    } else if (tokenizer) {
      // Decoded from the start each time: a character may need several tokens.
      drawn.push_back(token);
      const std::string text = tokenizer->decode(drawn);
      std::cout << text.substr(printed);
      printed = text.size();
    } else {
      std::cout << (first ? "" : ",") << token;
      first = false;
    }
    return static_cast<bool>(std::cout.flush());
  });
  std::cout << "\n";
}

// Guidance as given, or 4 where the model has learned to draw without a class too.
double guidance_of(const std::optional<double>& given, const DitConfig& shape) {
  const bool guided = shape.classes > 0 && shape.guided;
  if (!given) return guided ? 4 : 1;
  if (!std::isfinite(*given)) throw UserError(cat("--guidance ", *given, " must be a number such as 4"));
  if (!guided && *given != 1)
    throw UserError(
        cat("--guidance ", *given, " cannot be: this model ", shape.classes > 0 ? kAlwaysTold : "has no classes"));
  return *given;
}

// A picture for each class and count, drawn by any grid of ranks.
void draw_sample(const SampleFlags& flags, const fs::path& folder) {
  const DitConfig shape = std::get<DitConfig>(read_config(folder));
  const fs::path out = flags.out;
  const std::string kind = out.extension();
  if (kind != ".png" && kind != ".safetensors")
    throw UserError(cat("--out ", out.string(), " must end in .png, or in .safetensors for the numbers themselves"));
  if (kind == ".png" && shape.channels != 1 && shape.channels != 3)
    throw UserError(cat("this model draws latents of ", shape.channels, " channels, which are no pictures yet: ",
                        "give --out a name that ends in .safetensors, and decode them"));
  if (flags.count < 1 || flags.count > 1'000'000)
    throw UserError(cat("--count ", flags.count, " must be 1 to 1000000"));
  if (flags.ranks < 1 || flags.ranks > shape.tokens())
    throw UserError(cat("--ranks ", flags.ranks, " must be 1 to ", shape.tokens(), ", the tokens of a picture"));
  const double guidance = guidance_of(flags.guidance, shape);
  const std::vector<int64_t> classes =
      flags.classes.empty() ? usual_classes(shape) : parse_classes(flags.classes, shape);
  std::vector<int64_t> empty;
  for (int64_t one : classes)
    if (!has_data(one, shape)) empty.push_back(one);
  if (!empty.empty())
    std::cerr << "startrail: warning: the model had no data of " << (empty.size() > 1 ? "the classes " : "class ")
              << join(empty) << ", so it never learned what to draw\n";
  std::vector<std::string> names;
  for (int64_t one : classes) names.push_back(class_name(one, shape));
  DrawOptions options{{}, flags.steps, guidance, flags.options.seed};
  for (int64_t one : classes) options.labels.insert(options.labels.end(), flags.count, one);
  sampling_levels(shape.objective, flags.steps);  // throws for a number of steps that cannot be

  TrainConfig config;
  config.model.preset = "dit-tiny";
  config.parallel.ranks = flags.ranks;
  config.parallel.grid = flags.grid;
  config.train.tokens = shape.tokens();
  set_model(config, shape);
  check_config(config, shape);
  const AttentionOptions attention = attention_options(config);
  const auto model = load_dit(folder, parse_type(flags.dtype, "dtype"), which(flags.last));
  if (!out.parent_path().empty()) fs::create_directories(out.parent_path());
  check_writes(out, "--out");
  std::optional<Progress> progress("drawing");
  at::Tensor pictures;
  run_ranks(flags.ranks, thread_count({}), [&](const std::shared_ptr<Group>& group) {
    const at::Tensor drawn = draw(*model, options, attention, group, [&](double done) {
      if (group->rank() == 0)
        progress->show(cat("drawing ", options.labels.size(), " pictures: ", fixed(100 * done, 0), "%"));
    });
    if (group->rank() == 0) pictures = drawn;
  });
  progress.reset();
  if (!at::isfinite(pictures).all().item<bool>())
    throw UserError(cat("the numbers that were drawn are not finite",
                        guidance == 1 ? ": use another checkpoint" : cat(": lower --guidance ", guidance)));
  if (kind == ".png") {
    write_png(out, picture_grid(pictures, flags.count));
  } else {
    const int64_t begin = make_tensor_file(out, {{"pictures", at::kFloat, pictures.sizes().vec()}});
    write_at(out, begin, pictures.contiguous());
  }
  std::cout << out.string() << ": " << pictures.size(0) << " pictures, a row for each of the classes " << join(names)
            << "; " << flags.steps << (shape.objective == "flow" ? " steps of Euler" : " steps of DDIM")
            << ", guidance " << guidance << "\n";
}

// --- evaluate

struct EvaluateFlags {
  std::string checkpoint, data, dtype = "float32";
  int64_t tokens = 0, windows = 0;
  std::optional<int64_t> buckets;
  bool json = false, recognise = false, last = false;
  std::optional<double> guidance;
};

// A DiT's loss on held-out pictures, and whether a classifier recognises what it draws.
void evaluate_dit(const EvaluateFlags& flags, const fs::path& folder) {
  constexpr int64_t kHeldOut = 2000, kSteps = 200, kDrawn = 200;
  if (!fs::exists(folder / "training.json"))
    throw UserError(cat(folder.string(), " is not of a run, which says what it was trained on: give a run's folder"));
  if (flags.tokens > 0 || flags.buckets) throw UserError("--tokens and --buckets are for a GPT's text: leave them out");
  const TrainingState state = read_state(folder);
  TrainConfig config = run_config(state, folder);
  if (!flags.data.empty()) {
    config.data.path = config.data.validation_path = flags.data;
    if (flags.data != kShapes) config.data.generated = TrainConfig{}.data.generated;
  }
  config.validate.windows = flags.windows;
  config.data.on_error = "skip";  // and the result says what was left out
  const auto model = load_dit(folder, parse_type(flags.dtype, "dtype"), which(flags.last));
  const DitConfig& shape = model->shape();
  const double guidance = guidance_of(flags.guidance, shape);
  if (flags.guidance && !flags.recognise)
    throw UserError("--guidance is for the pictures of --recognise: leave it out");
  if (flags.recognise && ((shape.channels != 1 && shape.channels != 3) || shape.size[0] > 1))
    throw UserError("--recognise is for pictures, not for latents or videos: leave it out");
  if (flags.recognise && shape.classes < 2)
    throw UserError("--recognise needs a model that was told the classes of its pictures");
  const bool given = !flags.data.empty();  // then all of it is held out
  const PicturesOptions options = pictures_options(config, shape, given);
  const auto pictures = open_pictures(options);
  const auto held_out = given                                 ? pictures
                        : config.data.validation_path.empty() ? nullptr
                                                              : open_pictures(pictures_options(config, shape, true));
  const PictureSource source(pictures, held_out, shape, picture_source_options(config, shape));
  check_classes(source.classes(), shape, folder);
  if (flags.data.empty() && source.fingerprint() != state.data)
    std::cerr << "startrail: warning: the data in " << config.data.path
              << " is not what the run held out and trained on: this loss cannot be compared with the run's\n";
  if (source.validation_count() == 0) throw UserError("this run held no pictures out: give --data");
  nlohmann::json json{{"sequences", source.validation_count()}};
  std::vector<std::string> skipped;
  std::optional<Progress> progress(cat("evaluating ", source.validation_count(), " sequences"));
  run_ranks(1, thread_count({}), [&](const std::shared_ptr<Group>& group) {
    const AttentionOptions attention;
    const Validation result = validate(*model, source, attention, *group, group, 0);
    if (!result.loss) throw UserError(cat("no picture can be read; the first error: ", source.skipped().front()));
    json["loss"] = *result.loss;
    skipped = source.skipped();
    if (!flags.recognise) return;
    progress->show("training a classifier");
    const Recogniser recogniser(*pictures, options.shape, std::min(kHeldOut, pictures->count() / 4), kSteps, 1,
                                options.skip_bad);
    for (const auto& [index, problem] : recogniser.skipped())  // some of them a second time
      if (std::find(skipped.begin(), skipped.end(), problem) == skipped.end()) skipped.push_back(problem);
    DrawOptions drawing{{}, 50, guidance, 1};
    const auto classes = static_cast<int64_t>(pictures->classes().size());
    for (int64_t i = 0; i < kDrawn; ++i) drawing.labels.push_back(i % classes);
    const at::Tensor drawn = draw(*model, drawing, attention, group, [&](double done) {
      progress->show(cat("drawing ", kDrawn, " pictures: ", fixed(100 * done, 0), "%"));
    });
    const at::Tensor right = recogniser.classes_of(drawn.squeeze(2)) == at::tensor(drawing.labels, at::kLong);
    json["classifier_accuracy"] = recogniser.accuracy();
    json["recognised"] = right.to(at::kDouble).mean().item<double>();
    for (int64_t i = 0; i < classes; ++i)
      json["recognised_by_class"][pictures->classes()[i]] =
          right.slice(0, i, kDrawn, classes).to(at::kDouble).mean().item<double>();
  });
  progress.reset();  // wiped before the result is shown
  json["skipped"] = skipped.size();
  if (flags.json) {
    std::cout << json.dump(2) << "\n";
    return;
  }
  std::cout << "loss " << fixed(json["loss"], 4) << " mean square, " << source.validation_count() << " sequences, "
            << (flags.last || !fs::exists(folder / "ema.safetensors") ? "the last weights" : "the mean of the weights")
            << "\n";
  if (!skipped.empty())
    std::cout << "left out, as they could not be used: " << plural(static_cast<int64_t>(skipped.size()), "item")
              << "; the first: " << skipped.front() << "\n";
  if (!flags.recognise) return;
  std::cout << "a classifier trained on the same pictures is right about "
            << fixed(100 * json["classifier_accuracy"].get<double>(), 1) << "% of held-out ones,\nand recognises "
            << fixed(100 * json["recognised"].get<double>(), 1) << "% of " << kDrawn << " drawn ones (guidance "
            << guidance << ")\n\n";
  std::vector<std::vector<std::string>> rows{{"class", "recognised"}};
  for (const auto& [name, share] : json["recognised_by_class"].items())
    rows.push_back({name, fixed(100 * share.get<double>(), 1) + "%"});
  std::cout << table(rows);
}

void run_evaluate(const EvaluateFlags& flags) {
  const fs::path folder = model_folder(flags.checkpoint);
  if (std::holds_alternative<DitConfig>(read_config(folder))) return evaluate_dit(flags, folder);
  if (flags.recognise || flags.guidance)
    throw UserError("--recognise and --guidance are for a DiT's pictures: leave them out");
  TrainConfig config;
  TrainingState state;
  if (fs::exists(folder / "training.json")) {
    state = read_state(folder);
    config = run_config(state, folder);
  }
  const auto model = load_llama(folder, parse_type(flags.dtype, "dtype"), which(flags.last));
  settle(config, model->shape());
  CorpusOptions corpus = corpus_options(config, model->shape().vocabulary);
  if (!flags.data.empty()) {
    // All of what is named is held out: it is evaluated, not trained on.
    corpus.path = corpus.validation_path = flags.data;
  }
  if (corpus.path.empty()) throw UserError("there is nothing to evaluate on: give --data");
  TokenSourceOptions options = source_options(config);
  options.validation_windows = flags.windows;
  if (flags.tokens > 0) options.tokens = flags.tokens;
  const Corpora data = open_data(corpus);
  if (!flags.data.empty()) check_bytes(data.validation, model->shape(), folder);
  if (flags.data.empty() && !fingerprint(data).starts_with(state.data))
    std::cerr << "startrail: warning: the data in " << corpus.path << " is not what the run held out and trained on: "
              << "this loss cannot be compared with the run's\n";
  if (data.validation.tokens() == 0) throw UserError("this run held no data out: give --data");
  if (data.validation.tokens() < options.tokens + 1)
    throw UserError(cat("the validation data has ", data.validation.tokens(), " tokens, but one sequence needs ",
                        options.tokens + 1, ": give --tokens ", data.validation.tokens() - 1,
                        " or less, or more data"));
  const int64_t buckets = flags.buckets.value_or(16);
  if (buckets > options.tokens)
    throw UserError(cat("--buckets ", buckets, " are more than the ", options.tokens,
                        " tokens of a sequence: give as many or fewer"));
  const TokenSource source({data.validation, data.validation}, options);
  Validation result;
  {
    const Progress progress(cat("evaluating ", source.validation_count(), " sequences"));
    run_ranks(1, thread_count({}), [&](const std::shared_ptr<Group>& group) {
      AttentionOptions attention;
      attention.mask.causal = true;
      result = validate(*model, source, attention, *group, group, buckets);
    });
  }
  if (!result.loss) throw UserError("there is no token to predict: documents of one token only?");
  if (flags.json) {
    std::cout << nlohmann::json{{"loss", *result.loss},
                                {"tokens", options.tokens},
                                {"sequences", source.validation_count()},
                                {"by_position", result.by_position}}
                     .dump(2)
              << "\n";
    return;
  }
  std::cout << "loss " << fixed(*result.loss, 4) << " nats a token, " << source.validation_count() << " sequences of "
            << options.tokens << " tokens\n\n";
  std::vector<std::vector<std::string>> rows{{"positions", "loss"}};
  for (int64_t i = 0; i < buckets; ++i)
    rows.push_back({cat(options.tokens * i / buckets, " to ", options.tokens * (i + 1) / buckets - 1),
                    fixed(result.by_position[i], 4)});
  std::cout << table(rows);
}

// --- export

struct ExportFlags {
  std::string checkpoint, out, dtype = "float32";
  bool last = false;
};

void run_export(const ExportFlags& flags) {
  const fs::path folder = model_folder(flags.checkpoint);
  const auto model = load_model(folder, at::kFloat, which(flags.last));
  const std::string file = export_model(*model, flags.out, parse_type(flags.dtype, "dtype"));
  const ModelConfig config = read_config(folder);
  const auto* dit = std::get_if<DitConfig>(&config);
  std::cout << flags.out << ": config.json and " << file << " (" << flags.dtype << "), for "
            << (!dit                                          ? "transformers' LlamaForCausalLM.from_pretrained"
                : dit->is_plain() && dit->objective == "flow" ? "diffusers' DiTTransformer2DModel.from_pretrained (it "
                                                                "predicts a velocity: use a flow-matching scheduler)"
                : dit->is_plain()                             ? "diffusers' DiTTransformer2DModel.from_pretrained"
                                                              : "StarTrail only: diffusers has no such form of a DiT")
            << "\n";
}

constexpr int64_t kMost = 1'000'000'000'000;  // of any count given
constexpr const char* kLastHelp = "The last weights, where a checkpoint also has their running mean";
constexpr const char* kCheckpointHelp =
    "A run's folder (its newest checkpoint), a checkpoint, or a Hugging Face folder";

}  // namespace

void add_sample(CLI::App& app) {
  auto flags = std::make_shared<SampleFlags>();
  CLI::App* command = app.add_subcommand("sample", "Generate text, or draw pictures, from a checkpoint");
  command->add_option("--checkpoint", flags->checkpoint, kCheckpointHelp)->required()->type_name("FOLDER");
  command
      ->add_option("--prompt", flags->prompt,
                   "Text to go on from; token ids such as 1,2,3 for a model that is not "
                   "byte-level and has no --tokenizer")
      ->type_name("TEXT");
  command->add_option("--tokenizer", flags->tokenizer, "A tokenizer.json (byte-level BPE), or the folder that holds it")
      ->type_name("FILE");
  command->add_option("--tokens", flags->options.tokens, "Tokens to generate")->capture_default_str();
  command->add_option("--temperature", flags->options.temperature, "0 takes the likeliest")->capture_default_str();
  command->add_option("--top-k", flags->options.top_k, "Only the k likeliest; 0: all")->capture_default_str();
  command->add_option("--top-p", flags->options.top_p, "Only the likeliest that together have this probability")
      ->capture_default_str();
  command->add_option("--seed", flags->options.seed, "Of the draws")
      ->check(CLI::Range(int64_t{0}, kMost))
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
  command->footer(
      "Example: startrail sample --checkpoint runs/gpt --prompt '#include' --temperature 0.7\n"
      "         startrail sample --checkpoint runs/dit --classes 0,1 --count 8 --guidance 3 --out pictures.png");
  command->callback([flags, command, out, classes, count, steps, guidance, ranks, grid] {
    const fs::path folder = model_folder(flags->checkpoint);
    const bool dit = std::holds_alternative<DitConfig>(read_config(folder));
    // A flag of the other kind would be ignored.
    const std::vector<CLI::Option*> of_dit{out, classes, count, steps, guidance, ranks, grid};
    for (const CLI::Option* one : command->get_options()) {
      const std::string name = one->get_name();
      const bool both =
          name == "--checkpoint" || name == "--seed" || name == "--dtype" || name == "--last" || name == "--help";
      const bool theirs = std::find(of_dit.begin(), of_dit.end(), one) != of_dit.end();
      if (one->count() > 0 && !both && theirs != dit)
        throw UserError(cat(name, " is for a ", dit ? "GPT" : "DiT", ", but ", folder.string(), " holds a ",
                            dit ? "DiT" : "GPT", ": leave it out"));
    }
    dit ? draw_sample(*flags, folder) : write_text_sample(*flags, folder);
  });
}

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
      ->check(CLI::Range(int64_t{0}, kMost))
      ->capture_default_str();
  command->add_option("--windows", flags->windows, "Sequences used; 0: all")
      ->check(CLI::Range(int64_t{0}, kMost))
      ->capture_default_str();
  command->add_option("--buckets", flags->buckets, "GPT: parts of the sequence whose loss is shown; otherwise 16")
      ->check(CLI::Range(1, 4096));
  command->add_flag("--recognise", flags->recognise,
                    "DiT: also train a classifier on the data, and say how many drawn pictures it recognises");
  command->add_option("--guidance", flags->guidance, "DiT: of these pictures; otherwise as in sample");
  command->add_flag("--last", flags->last, kLastHelp);
  command->add_option("--dtype", flags->dtype, "float32 or bfloat16")->capture_default_str();
  command->add_flag("--json", flags->json, "Print the result as JSON");
  command->footer("Example: startrail evaluate --checkpoint runs/gpt --buckets 8");
  command->callback([flags] { run_evaluate(*flags); });
}

void add_export(CLI::App& app) {
  auto flags = std::make_shared<ExportFlags>();
  CLI::App* command =
      app.add_subcommand("export", "Write a checkpoint as a folder that transformers or diffusers loads");
  command->add_option("--checkpoint", flags->checkpoint, kCheckpointHelp)->required()->type_name("FOLDER");
  command->add_option("--out", flags->out, "A new folder")->required()->type_name("FOLDER");
  command->add_option("--dtype", flags->dtype, "float32 or bfloat16")->capture_default_str();
  command->add_flag("--last", flags->last, kLastHelp);
  command->footer("Example: startrail export --checkpoint runs/gpt --out my-model");
  command->callback([flags] { run_export(*flags); });
}

}  // namespace startrail::cli

// startrail sample, evaluate and export: what is done with a trained model.
#include <ATen/Parallel.h>
#include <filesystem>
#include <iostream>
#include <nlohmann/json.hpp>

#include "cli/command.h"
#include "cli/text_model.h"
#include "startrail/base/error.h"
#include "startrail/run/comm/ranks.h"
#include "startrail/train/checkpoint.h"
#include "startrail/train/estimate.h"
#include "startrail/train/tokenizer.h"
#include "startrail/train/trainer.h"
#include "startrail/train/weights.h"

namespace startrail::cli {
namespace {

namespace fs = std::filesystem;

at::ScalarType parse_type(const std::string& text) {
  if (text == "float32") return at::kFloat;
  if (text == "bfloat16") return at::kBFloat16;
  throw UserError(cat("dtype '", text, "' is not known; valid: float32, bfloat16"));
}

// A run, one of its checkpoints, or a folder as Hugging Face has them.
fs::path model_folder(const std::string& path) {
  if (fs::exists(fs::path(path) / "config.json") && !fs::exists(fs::path(path) / "training.json")) return path;
  const fs::path checkpoint = find_checkpoint(path);
  verify_checkpoint(checkpoint);
  return checkpoint;
}

// --- sample

struct SampleFlags {
  std::string checkpoint, prompt, tokenizer, dtype = "float32";
  SampleOptions options;
};

std::vector<int64_t> parse_tokens(const std::string& text) {
  std::vector<int64_t> tokens;
  for (const std::string& part : split(text, ',')) tokens.push_back(parse_int(part, "token"));
  return tokens;
}

void run_sample(const SampleFlags& flags) {
  check_options(flags.options);
  at::set_num_threads(thread_count({}));
  const auto model = load_model(model_folder(flags.checkpoint), parse_type(flags.dtype));
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
  const double each = 2.0 * static_cast<double>(shape.layers * shape.key_heads * shape.head_dim) *
                      static_cast<double>(c10::elementSize(parse_type(flags.dtype)));
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

// --- evaluate

struct EvaluateFlags {
  std::string checkpoint, data, dtype = "float32";
  int64_t tokens = 0, windows = 0, buckets = 16;
  bool json = false;
};

void run_evaluate(const EvaluateFlags& flags) {
  const fs::path folder = model_folder(flags.checkpoint);
  TrainConfig config;
  TrainingState state;
  if (fs::exists(folder / "training.json")) {
    state = read_state(folder);
    read_toml_text(settings_of(config), state.settings, (folder / "training.json").string());
  }
  const auto model = load_model(folder, parse_type(flags.dtype));
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
  if (flags.data.empty() && !fingerprint(data).starts_with(state.data))
    std::cerr << "startrail: warning: the data in " << corpus.path << " is not what the run held out and trained on: "
              << "this loss cannot be compared with the run's\n";
  if (data.validation.tokens() == 0) throw UserError("this run held no data out: give --data");
  if (data.validation.tokens() < options.tokens + 1)
    throw UserError(cat("the validation data has ", data.validation.tokens(), " tokens, but one sequence needs ",
                        options.tokens + 1, ": give --tokens ", data.validation.tokens() - 1,
                        " or less, or more data"));
  if (flags.buckets > options.tokens)
    throw UserError(cat("--buckets ", flags.buckets, " are more than the ", options.tokens,
                        " tokens of a sequence: give as many or fewer"));
  const TokenSource source({data.validation, data.validation}, options);
  Validation result;
  Progress progress(cat("evaluating ", source.validation_count(), " sequences"));
  run_ranks(1, thread_count({}), [&](const std::shared_ptr<Group>& group) {
    AttentionOptions attention;
    attention.mask.causal = true;
    result = validate(*model, source, attention, *group, group, flags.buckets);
  });
  if (flags.json) {
    std::cout << nlohmann::json{{"loss", result.loss},
                                {"tokens", options.tokens},
                                {"sequences", source.validation_count()},
                                {"by_position", result.by_position}}
                     .dump(2)
              << "\n";
    return;
  }
  std::cout << "loss " << fixed(result.loss, 4) << " nats a token, " << source.validation_count() << " sequences of "
            << options.tokens << " tokens\n\n";
  std::vector<std::vector<std::string>> rows{{"positions", "loss"}};
  for (int64_t i = 0; i < flags.buckets; ++i)
    rows.push_back({cat(options.tokens * i / flags.buckets, " to ", options.tokens * (i + 1) / flags.buckets - 1),
                    fixed(result.by_position[i], 4)});
  std::cout << table(rows);
}

// --- export

struct ExportFlags {
  std::string checkpoint, out, dtype = "float32";
};

void run_export(const ExportFlags& flags) {
  const auto model = load_model(model_folder(flags.checkpoint), at::kFloat);
  export_model(*model, flags.out, parse_type(flags.dtype));
  std::cout << flags.out << ": config.json and model.safetensors (" << flags.dtype
            << "), for transformers' LlamaForCausalLM.from_pretrained\n";
}

constexpr const char* kCheckpointHelp =
    "A run's folder (its newest checkpoint), a checkpoint, or a Hugging Face folder";

}  // namespace

void add_sample(CLI::App& app) {
  auto flags = std::make_shared<SampleFlags>();
  CLI::App* command = app.add_subcommand("sample", "Generate text from a checkpoint");
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
  command->add_option("--seed", flags->options.seed, "Of the draws")->capture_default_str();
  command->add_option("--dtype", flags->dtype, "float32 or bfloat16")->capture_default_str();
  command->footer("Example: startrail sample --checkpoint runs/gpt --prompt '#include' --temperature 0.7");
  command->callback([flags] { run_sample(*flags); });
}

void add_evaluate(CLI::App& app) {
  auto flags = std::make_shared<EvaluateFlags>();
  CLI::App* command = app.add_subcommand("evaluate", "Loss of a checkpoint on held-out data, in all and by position");
  command->add_option("--checkpoint", flags->checkpoint, kCheckpointHelp)->required()->type_name("FOLDER");
  command->add_option("--data", flags->data, "Text or token files; otherwise the run's own validation data")
      ->type_name("PATH");
  command->add_option("--tokens", flags->tokens, "Length of a sequence; 0: as in training")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  command->add_option("--windows", flags->windows, "Sequences used; 0: all")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  command->add_option("--buckets", flags->buckets, "Parts of the sequence whose loss is shown")
      ->check(CLI::Range(1, 4096))
      ->capture_default_str();
  command->add_option("--dtype", flags->dtype, "float32 or bfloat16")->capture_default_str();
  command->add_flag("--json", flags->json, "Print the result as JSON");
  command->footer("Example: startrail evaluate --checkpoint runs/gpt --buckets 8");
  command->callback([flags] { run_evaluate(*flags); });
}

void add_export(CLI::App& app) {
  auto flags = std::make_shared<ExportFlags>();
  CLI::App* command = app.add_subcommand("export", "Write a checkpoint as a folder that transformers loads");
  command->add_option("--checkpoint", flags->checkpoint, kCheckpointHelp)->required()->type_name("FOLDER");
  command->add_option("--out", flags->out, "A new folder")->required()->type_name("FOLDER");
  command->add_option("--dtype", flags->dtype, "float32 or bfloat16")->capture_default_str();
  command->footer("Example: startrail export --checkpoint runs/gpt --out my-model");
  command->callback([flags] { run_export(*flags); });
}

}  // namespace startrail::cli

#include "startrail/train/loop/config.h"

#include <algorithm>
#include <set>

#include "startrail/base/error.h"
#include "startrail/base/random.h"
#include "startrail/base/threads.h"
#include "startrail/run/kernel/kernel.h"

namespace startrail {
namespace {

// So that counts of tokens and bytes fit 64 bits.
constexpr double kMostTokens = 1e12, kMostBatch = 1e6, kMostSteps = 1e9;
constexpr int64_t kMostRanks = 1024;
constexpr const char* kAuto = "auto";

void check_rope_settings(const TrainConfig& config) {
  const auto& m = config.model;
  const TrainConfig defaults;
  const auto refuse = [&](const char* name, double value, const char* needed) {
    throw UserError(cat("model.", name, " ", value, " has no effect with model.rope_scaling ", m.rope_scaling,
                        ": it needs ", needed));
  };
  if (m.rope_scaling == "default" && m.rope_factor != defaults.model.rope_factor)
    refuse("rope_factor", m.rope_factor, "linear, llama3 or yarn");
  if (m.rope_scaling != "llama3" && m.rope_low_frequency != defaults.model.rope_low_frequency)
    refuse("rope_low_frequency", m.rope_low_frequency, "llama3");
  if (m.rope_scaling != "llama3" && m.rope_high_frequency != defaults.model.rope_high_frequency)
    refuse("rope_high_frequency", m.rope_high_frequency, "llama3");
  if (m.rope_scaling != "yarn" && m.rope_beta_fast != defaults.model.rope_beta_fast)
    refuse("rope_beta_fast", m.rope_beta_fast, "yarn");
  if (m.rope_scaling != "yarn" && m.rope_beta_slow != defaults.model.rope_beta_slow)
    refuse("rope_beta_slow", m.rope_beta_slow, "yarn");
}

std::vector<std::string> all_presets() {
  std::vector<std::string> all = llama_presets();
  for (const std::string& name : dit_presets()) all.push_back(name);
  return all;
}

// Settings that only the other kind of model has must be as they are by default.
void check_kind(const TrainConfig& config) {
  static const std::set<std::string> kGpt{"model.vocabulary",
                                          "model.kv_heads",
                                          "model.hidden",
                                          "model.tied",
                                          "model.kind",
                                          "model.rope_theta",
                                          "model.rope_scaling",
                                          "model.rope_factor",
                                          "model.rope_original_tokens",
                                          "model.rope_low_frequency",
                                          "model.rope_high_frequency",
                                          "model.rope_beta_fast",
                                          "model.rope_beta_slow",
                                          "data.end_token",
                                          "data.documents"};
  static const std::set<std::string> kDit{
      "model.channels",  "model.classes",      "model.frames",       "model.height",
      "model.width",     "model.patch_frames", "model.patch_height", "model.patch_width",
      "model.positions", "model.objective",    "data.fit",           "data.on_error",
      "data.scale",      "data.generated",     "data.class_dropout", "data.times"};
  TrainConfig given = config, defaults;
  const Settings ours = settings_of(given), usual = settings_of(defaults);
  for (const std::string& name : is_dit(config) ? kGpt : kDit)
    if (present_value(find_setting(ours, name)) != present_value(find_setting(usual, name)))
      throw UserError(cat(name, " is for a ", is_dit(config) ? "GPT" : "DiT", ", but model.preset ",
                          config.model.preset, " is a ", is_dit(config) ? "DiT" : "GPT", ": leave it out"));
}

// All but the grid.
AttentionOptions open_options(const TrainConfig& config) {
  AttentionOptions options;
  options.tokens = config.train.tokens;
  const std::string& layout = config.parallel.layout;
  options.order = parse_order(layout != kAuto ? layout : is_dit(config) ? "contiguous" : "zigzag");
  options.mask.causal = !is_dit(config);
  options.backward = parse_direction(config.parallel.backward);
  options.partial = config.parallel.partial == "bfloat16" ? at::kBFloat16 : at::kFloat;
  options.kernel = config.parallel.kernel;
  return options;
}

// The grid that sends least, of so many ranks.
GridChoice choose(AttentionOptions options, int ranks, const ModelConfig& model, at::ScalarType type,
                  const Exchange& exchange) {
  options.grid = {.ring = ranks};
  const Dimensions d = dimensions(model);
  const Problem problem =
      make_problem(options, 1, static_cast<int>(d.heads), static_cast<int>(d.key_heads), d.head_dim, type);
  return choose_grid(problem, exchange);
}

}  // namespace

Settings settings_of(TrainConfig& c) {
  return {
      {"model.preset", &c.model.preset,
       "The kind of model (dit-...: a DiT, otherwise a GPT) and the shape to start from.", all_presets()},
      {"model.vocabulary",
       &c.model.vocabulary,
       "Token ids there are. 0: 256 for bytes, what a tokens.json says, else the preset's.",
       {},
       0},
      {"model.dim", &c.model.dim, "Width of the residual stream. 0 here and below: the preset's.", {}, 0},
      {"model.layers", &c.model.layers, "Transformer blocks.", {}, 0},
      {"model.heads", &c.model.heads, "Query heads.", {}, 0},
      {"model.kv_heads",
       &c.model.kv_heads,
       "Key/value heads; must divide heads. 0: the preset's, or as many as heads where that is set.",
       {},
       0},
      {"model.head_dim", &c.model.head_dim, "Width of a head. 0: dim / heads.", {}, 0},
      {"model.hidden", &c.model.hidden, "Width of the SwiGLU.", {}, 0},
      {"model.tied", &c.model.tied, "Whether the head shares the embedding's weights.", {"preset", "true", "false"}},
      {"model.kind", &c.model.kind,
       "Of a GPT. Others than llama come from a folder (--from), which says what they are.", llama_kinds()},
      {"model.norm_eps",
       &c.model.norm_eps,
       "Added to the mean square in RMSNorm; DiT: to the variance in the norm before the MLP.",
       {},
       0,
       1},
      {"model.rope_theta", &c.model.rope_theta, "Base of the rotary positions' wavelengths.", {}, 1, 1e12},
      {"model.rope_scaling",
       &c.model.rope_scaling,
       "How rotary positions are stretched to longer contexts.",
       {"default", "linear", "llama3", "yarn"}},
      {"model.rope_factor", &c.model.rope_factor, "How far they are stretched.", {}, 1, 1e9},
      {"model.rope_original_tokens",
       &c.model.rope_original_tokens,
       "Context length before stretching (llama3, yarn). 0: that of the model given with --from.",
       {},
       0},
      {"model.rope_low_frequency",
       &c.model.rope_low_frequency,
       "Below it waves are stretched in full (llama3).",
       {},
       0,
       1e9},
      {"model.rope_high_frequency",
       &c.model.rope_high_frequency,
       "Above it waves are left as they are (llama3).",
       {},
       0,
       1e9},
      {"model.rope_beta_fast",
       &c.model.rope_beta_fast,
       "Turns above which waves are left as they are (yarn).",
       {},
       0,
       1e9},
      {"model.rope_beta_slow",
       &c.model.rope_beta_slow,
       "Turns below which waves are stretched in full (yarn).",
       {},
       0,
       1e9},

      {"model.channels", &c.model.channels, "DiT: of a picture: 3 colours, or those of latents.", {}, 0},
      {"model.classes",
       &c.model.classes,
       "DiT: kinds of pictures told apart; 0: none, -1: as many as the data has (none if it has one).",
       {},
       -1},
      {"model.frames", &c.model.frames, "DiT: of a video; 1: pictures.", {}, 0},
      {"model.height", &c.model.height, "DiT: what pictures are brought to.", {}, 0},
      {"model.width", &c.model.width, "DiT: the same.", {}, 0},
      {"model.patch_frames", &c.model.patch_frames, "DiT: frames in a token.", {}, 0},
      {"model.patch_height", &c.model.patch_height, "DiT: rows in a token.", {}, 0},
      {"model.patch_width", &c.model.patch_width, "DiT: columns in a token.", {}, 0},
      {"model.positions", &c.model.positions, "DiT: how a token's place is told.", {"preset", "sine", "rotary"}},
      {"model.objective",
       &c.model.objective,
       "DiT: what is learned: flow (rectified flow, the velocity) or ddpm (the noise).",
       {"preset", "flow", "ddpm"}},

      {"data.path",
       &c.data.path,
       "A text file or a folder of them as bytes (binaries, what .gitignore names, runs and models are left out), a "
       "folder of tokens as `startrail tokenize` makes it, or a .bin file as nanoGPT and llm.c write them, or a folder "
       "of those. For a DiT: a folder of PNG and JPEG pictures, or of .npy or .safetensors latents, with a subfolder "
       "for each class; or the word shapes: "
       "generated pictures.",
       {}},
      {"data.validation_path",
       &c.data.validation_path,
       "The same for validation. Empty: a share of data.path is held out.",
       {}},
      {"data.validation",
       &c.data.validation,
       "Share held out: whole files of a folder of texts, whole documents of tokens, the tail of a file, or of "
       "pictures.",
       {},
       0,
       0.9},
      {"data.end_token",
       &c.data.end_token,
       "What ends a document in token files; -1: what a tokens.json says, else nothing. Bytes use 0.",
       {},
       -1,
       4294967295.0},
      {"data.documents",
       &c.data.documents,
       "Pack documents: attention and loss stay within each. Otherwise all is one stream.",
       {}},
      {"data.allow_changed", &c.data.allow_changed, "Go on when the data is not what it was at the checkpoint.", {}},
      {"data.fit",
       &c.data.fit,
       "DiT: how pictures of another size are used: scaled to cover and cropped to the middle, or stretched.",
       {"crop", "resize"}},
      {"data.on_error",
       &c.data.on_error,
       "DiT: what a file that cannot be used does: stop the run, or be left out and counted.",
       {"stop", "skip"}},
      {"data.scale", &c.data.scale, "DiT: what latents are multiplied by.", {}, 1e-6, 1e6},
      {"data.generated", &c.data.generated, "DiT: how many shapes there are.", {}, 1, 1e12},
      {"data.class_dropout",
       &c.data.class_dropout,
       "DiT: share of pictures trained without their class, which guidance needs.",
       {},
       0,
       0.99},
      {"data.times",
       &c.data.times,
       "DiT: how levels of noise are drawn; logit-normal prefers the middle.",
       {"uniform", "logit-normal"}},

      {"train.tokens",
       &c.train.tokens,
       "Length of a sequence. 0: 4096 for a GPT, one picture for a DiT, where a multiple of a picture's tokens puts "
       "several into a sequence, each attending to itself.",
       {},
       0,
       kMostTokens},
      {"train.batch",
       &c.train.batch,
       "Sequences per step over all ranks; each group of ranks takes its share one after the other (gradient "
       "accumulation).",
       {},
       1,
       kMostBatch},
      {"train.steps", &c.train.steps, "Steps in all.", {}, 1, kMostSteps},
      {"train.precision",
       &c.train.precision,
       "What is computed in; weights are kept in float32 in any case.",
       {"bfloat16", "float32"}},
      {"train.recompute",
       &c.train.recompute,
       "Keep only a block's input and attention's result, and recompute the rest in the backward pass. Less memory.",
       {}},
      {"train.seed", &c.train.seed, "Of the first weights and of the order of the data.", {}, 0},
      {"train.learning_rate", &c.train.learning_rate, "The highest.", {}, 0, 1e3},
      {"train.schedule",
       &c.train.schedule,
       "How the learning rate falls after the warm-up.",
       {"cosine", "linear", "constant"}},
      {"train.floor", &c.train.floor, "Where it ends, as a share of learning_rate.", {}, 0, 1},
      {"train.warmup", &c.train.warmup, "Steps in which it rises from 0.", {}, 0},
      {"train.weight_decay", &c.train.weight_decay, "AdamW's, on matrices only.", {}, 0, 1e3},
      {"train.beta1", &c.train.beta1, "AdamW's mean of gradients.", {}, 0, 0.99999},
      {"train.beta2", &c.train.beta2, "AdamW's mean of their squares.", {}, 0, 0.9999999},
      {"train.eps", &c.train.eps, "AdamW's.", {}, 1e-20, 1},
      {"train.clip", &c.train.clip, "Largest norm of the gradient; 0: any.", {}, 0, 1e9},
      {"train.ema",
       &c.train.ema,
       "Also keep a running mean of the weights, of which so much stays each step (0.999), and sample from it; 0: "
       "none.",
       {},
       0,
       0.9999999},

      {"parallel.ranks", &c.parallel.ranks, "Ranks in all.", {}, 1, kMostRanks},
      {"parallel.data_parallel",
       &c.parallel.data_parallel,
       "Groups of ranks that work on different sequences. Must divide ranks and train.batch.",
       {},
       1,
       kMostRanks},
      {"parallel.grid",
       &c.parallel.grid,
       "How the ranks of one sequence share attention: ring, startrail:C, ulysses, usp:U, allgather, mesh:A, or "
       "heads=..,team=..,ring=..,stripe=..; auto: the one that sends the fewest bytes in a step.",
       {}},
      {"parallel.layout",
       &c.parallel.layout,
       "Which tokens a rank holds; auto: zigzag for a GPT, contiguous for a DiT.",
       {"auto", "contiguous", "zigzag", "striped"}},
      {"parallel.backward",
       &c.parallel.backward,
       "What rides the rings in the backward pass; auto: the cheaper.",
       {"auto", "keys", "queries"}},
      {"parallel.partial", &c.parallel.partial, "Partial results on the wire.", {"float32", "bfloat16"}},
      {"parallel.kernel", &c.parallel.kernel, "Attention kernel.", {"auto", "flash", "aten", "reference"}},
      {"parallel.threads", &c.parallel.threads, "Threads of all ranks of a host together; 0: all cores.", {}, 0, 4096},
      {"parallel.timeout_s",
       &c.parallel.timeout_s,
       "Seconds without a sign of life after which a rank that is a process is given up, and the run with it.",
       {},
       2,
       86400},

      {"validate.every", &c.validate.every, "Steps between validations; 0: only at the end.", {}, 0},
      {"validate.windows", &c.validate.windows, "Validation sequences used; 0: all.", {}, 0},

      {"run.folder",
       &c.run.folder,
       "Where checkpoints, metrics.jsonl and config.toml go. Empty: runs/gpt, or runs/dit.",
       {}},
      {"run.save_every", &c.run.save_every, "Steps between checkpoints; 0: only at the end.", {}, 0},
      {"run.keep", &c.run.keep, "Newest checkpoints kept; 0: all.", {}, 0},
      {"run.samples", &c.run.samples,
       "Keep a sample with every checkpoint, in the run's folder: text after the start of the held-out data, or "
       "pictures; none where that takes long."},
  };
}

std::vector<std::pair<std::string, std::string>> changed_settings(const TrainConfig& config) {
  TrainConfig mine = config, plain;
  const Settings settings = settings_of(mine), defaults = settings_of(plain);
  std::vector<std::pair<std::string, std::string>> changed;
  for (size_t i = 0; i < settings.size(); ++i)
    if (const std::string text = value_text(settings[i]); text != value_text(defaults[i]))
      changed.emplace_back(settings[i].name, text);
  return changed;
}

at::ScalarType compute_type(const TrainConfig& config) {
  return config.train.precision == "bfloat16" ? at::kBFloat16 : at::kFloat;
}

int sequence_ranks(const TrainConfig& config) {
  return static_cast<int>(config.parallel.ranks / config.parallel.data_parallel);
}

int thread_count(const TrainConfig& config) {
  if (config.parallel.threads > 0) return static_cast<int>(config.parallel.threads);
  return available_cores();
}

Exchange exchange_of(const TrainConfig& config) {
  const Direction direction = parse_direction(config.parallel.backward);
  Exchange exchange{.restores = config.train.recompute};
  if (direction == Direction::keys) exchange.direction = Pass::backward_keys;
  if (direction == Direction::queries) exchange.direction = Pass::backward_queries;
  return exchange;
}

std::optional<GridChoice> grid_choice(const TrainConfig& config, const ModelConfig& model) {
  if (config.parallel.grid != kAuto) return std::nullopt;
  return choose(open_options(config), sequence_ranks(config), model, compute_type(config), exchange_of(config));
}

AttentionOptions attention_options(const TrainConfig& config, const ModelConfig& model) {
  AttentionOptions options = open_options(config);
  const auto chosen = grid_choice(config, model);
  options.grid = chosen ? chosen->grid : parse_grid(config.parallel.grid, sequence_ranks(config));
  return options;
}

int thread_count(const Sharing& sharing) { return sharing.threads > 0 ? sharing.threads : available_cores(); }

AttentionOptions attention_options(const Sharing& sharing, const ModelConfig& model, int64_t tokens) {
  const auto* dit = std::get_if<DitConfig>(&model);
  const int64_t most = std::min(tokens, kMostRanks);
  if (sharing.ranks < 1 || sharing.ranks > most)
    throw UserError(cat("--ranks ", sharing.ranks, " must be 1 to ", most,
                        most < tokens                    ? ""
                        : dit && tokens == dit->tokens() ? ", the tokens of a picture"
                                                         : ", the tokens of a sequence"));
  const Dimensions d = dimensions(model);
  AttentionOptions options;
  options.tokens = tokens;
  options.mask.causal = !dit;
  if (!dit && sharing.ranks > 1) options.order = Order::zigzag;
  options.grid = sharing.grid != kAuto ? parse_grid(sharing.grid, sharing.ranks)
                                       : choose(options, sharing.ranks, model, at::kFloat, {.backward = false}).grid;
  check_heads(options.grid, static_cast<int>(d.heads), static_cast<int>(d.key_heads));
  return options;
}

AdamWOptions optimizer_options(const TrainConfig& config) {
  const auto& t = config.train;
  return {
      .beta1 = t.beta1, .beta2 = t.beta2, .eps = t.eps, .weight_decay = t.weight_decay, .clip = t.clip, .ema = t.ema};
}

ScheduleOptions schedule_options(const TrainConfig& config) {
  const auto& t = config.train;
  return {.kind = t.schedule, .learning_rate = t.learning_rate, .floor = t.floor, .warmup = t.warmup, .steps = t.steps};
}

CorpusOptions corpus_options(const TrainConfig& config, int64_t vocabulary, const Listing& listing) {
  const auto& d = config.data;
  return {.path = d.path,
          .validation_path = d.validation_path,
          .validation = d.validation,
          .vocabulary = vocabulary,
          .end_token = d.end_token,
          .leave_out = config.run.folder,
          .listing = listing,
          .sets_vocabulary = config.model.vocabulary == 0};
}

TokenSourceOptions source_options(const TrainConfig& config) {
  return {.tokens = config.train.tokens,
          .documents = config.data.documents,
          .seed = static_cast<uint64_t>(config.train.seed),
          .validation_windows = config.validate.windows};
}

PicturesOptions pictures_options(const TrainConfig& config, const DitConfig& model, bool held_out,
                                 const Listing& listing) {
  const auto& d = config.data;
  const auto seed = static_cast<uint64_t>(config.train.seed);
  return {
      .path = held_out ? d.validation_path : d.path,
      .shape = {.channels = model.channels, .frames = model.size[0], .height = model.size[1], .width = model.size[2]},
      .fit = d.fit,
      .skip_bad = d.on_error == "skip",
      .scale = d.scale,
      .generated = d.generated,
      .seed = held_out ? mix(seed, 1) : seed,
      .without = config.run.folder,
      .listing = listing};
}

PictureSourceOptions picture_source_options(const TrainConfig& config, const DitConfig& model) {
  const auto& d = config.data;
  return {.together = config.train.tokens / model.tokens(),
          .validation = d.validation,
          .validation_windows = config.validate.windows,
          .class_dropout = d.class_dropout,
          .times = d.times,
          .skip_bad = d.on_error == "skip",
          .seed = static_cast<uint64_t>(config.train.seed)};
}

void check_settings(const TrainConfig& config) {
  check_kind(config);
  check_rope_settings(config);
}

void check_config(const TrainConfig& config, const ModelConfig& model) {
  check_config(model);
  check_settings(config);
  if (const auto* dit = std::get_if<DitConfig>(&model); dit && config.train.tokens % dit->tokens() != 0)
    throw UserError(cat("train.tokens ", config.train.tokens, " must be a multiple of the ", dit->tokens(),
                        " tokens of a picture (or 0: one picture)"));
  const auto& p = config.parallel;
  if (p.ranks % p.data_parallel != 0)
    throw UserError(cat("parallel.data_parallel ", p.data_parallel, " must divide parallel.ranks ", p.ranks));
  if (config.train.batch % p.data_parallel != 0)
    throw UserError(cat("parallel.data_parallel ", p.data_parallel, " must divide train.batch ", config.train.batch,
                        ", the sequences of a step"));
  const AttentionOptions options = attention_options(config, model);
  for (int rank = 0; rank < sequence_ranks(config); ++rank)
    if (chunk_tokens({options.order, config.train.tokens, sequence_ranks(config)}, rank) == 0)
      throw UserError(cat("train.tokens ", config.train.tokens, " leaves a rank without a token: give ",
                          sequence_ranks(config), " or more, one for each rank that shares a sequence"));
  const Dimensions d = dimensions(model);
  check_heads(options.grid, static_cast<int>(d.heads), static_cast<int>(d.key_heads));
  choose_kernel(options.kernel, compute_type(config), at::kCPU, d.head_dim);
  learning_rate(schedule_options(config), 0);
}

}  // namespace startrail

// startrail train: the main job. Says what will be trained, shows it live, and ends with a summary.
#include <signal.h>
#include <unistd.h>

#include <ATen/Parallel.h>
#include <atomic>
#include <cerrno>
#include <cmath>
#include <fstream>
#include <iostream>
#include <nlohmann/json.hpp>

#include "cli/command.h"
#include "cli/picture_classes.h"
#include "cli/picture_grid.h"
#include "cli/text_model.h"
#include "cli/train_job.h"
#include "startrail/base/error.h"
#include "startrail/run/comm/ranks.h"
#include "startrail/train/data/tokens/ngram.h"
#include "startrail/train/loop/estimate.h"
#include "startrail/train/loop/trainer.h"
#include "startrail/train/model/diffusion.h"
#include "startrail/train/model/weights.h"

namespace startrail::cli {
namespace {

namespace fs = std::filesystem;

// --- Stopping

std::atomic<int> interrupts = 0;
std::atomic<bool> trained = false;  // all is saved and said

void on_interrupt(int) {
  if (++interrupts > 1 || trained) _exit(130);
  constexpr char kMessage[] = "\nstopping after this step, with a checkpoint; once more stops at once\n";
  static_cast<void>(!write(STDERR_FILENO, kMessage, sizeof kMessage - 1));
}

void watch_interrupts() {
  struct sigaction action {};
  action.sa_handler = on_interrupt;
  action.sa_flags = SA_RESTART;
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
}

// --- Numbers for people

std::string clock_text(double seconds) {
  const auto whole = static_cast<int64_t>(std::lround(seconds));
  char text[48];
  if (whole >= 3600)
    std::snprintf(text, sizeof text, "%lld:%02lld:%02lld", static_cast<long long>(whole / 3600),
                  static_cast<long long>(whole / 60 % 60), static_cast<long long>(whole % 60));
  else
    std::snprintf(text, sizeof text, "%lld:%02lld", static_cast<long long>(whole / 60),
                  static_cast<long long>(whole % 60));
  return text;
}

std::string ratio_text(int64_t part, int64_t whole) {
  return whole > 0 ? fixed(static_cast<double>(part) / static_cast<double>(whole), 3) : "-";
}

// --- What is said before, during and after

std::string describe(const ModelConfig& model) {
  const Dimensions d = dimensions(model);
  std::string text = cat(d.layers, " layers, dim ", d.dim, ", ", d.heads, " heads");
  const auto* dit = std::get_if<DitConfig>(&model);
  if (!dit) return cat(text, " (", d.key_heads, " key/value), vocabulary ", std::get<LlamaConfig>(model).vocabulary);
  const auto sides = [&](const std::array<int64_t, 3>& s) {
    return cat(dit->size[0] > 1 ? cat(s[0], " x ") : "", s[1], " x ", s[2]);
  };
  return cat("DiT, ", text, ", ", sides(dit->size), " with ", dit->channels, " channels in patches of ",
             sides(dit->patch), ", ", dit->classes, " classes, ", dit->objective);
}

void print_job(const Job& job, const Estimate& e) {
  const TrainConfig& c = job.config;
  const AttentionOptions attention = attention_options(c);
  const auto mb = [](int64_t bytes) { return human_bytes(static_cast<double>(bytes)); };
  std::cout << "model     " << human_count(static_cast<double>(e.parameters)) << " parameters: " << describe(job.model)
            << ", " << c.train.precision << "\n"
            << "data      " << c.data.path << ": " << job.source->describe() << "\n"
            << "steps     " << c.train.steps << " of " << c.train.batch << " x " << c.train.tokens << " tokens ("
            << fixed(static_cast<double>(c.train.steps * c.train.batch) / static_cast<double>(job.source->epoch()), 2)
            << " epochs)" << (c.train.warmup >= c.train.steps ? ", all of them in the warm-up" : "")
            << (job.step > 0 ? cat(", from step ", job.step) : "") << "\n"
            << "ranks     " << c.parallel.ranks << " on " << thread_count(c) << " threads: " << c.parallel.data_parallel
            << " data parallel x " << to_text(attention.grid);
  const std::string scheme = scheme_of(attention.grid);
  std::cout << (scheme.empty() || c.parallel.ranks == 1 ? "" : cat(" (", scheme, ")")) << ", "
            << to_text(attention.order) << "\n"
            << "memory    " << mb(e.rank_bytes()) << " a rank: weights " << mb(e.weights) << ", gradients "
            << mb(e.gradients) << ", optimizer " << mb(e.optimizer) << ", saved activations " << mb(e.saved)
            << ", working " << mb(e.working) << "\n"
            << "a step    sends " << mb(e.attention_bytes)
            << " a rank for attention (ring: " << mb(e.ring_attention_bytes) << ", "
            << ratio_text(e.attention_bytes, e.ring_attention_bytes) << " of it) and " << mb(e.weight_bytes)
            << " for gradients and weights\n"
            << "run       " << c.run.folder << "\n";
}

// One live line on a terminal; elsewhere a plain line now and then.
class Display {
 public:
  explicit Display(double seconds_between) : between_(seconds_between), live_(isatty(STDOUT_FILENO)) {}

  void show(const StepReport& r, size_t skipped) {
    spent_ += r.seconds;
    ++steps_;
    if (r.validation) validation_ = r.validation;
    const double left = spent_ / static_cast<double>(steps_) * static_cast<double>(r.steps - r.step);
    std::string line = cat("step ", r.step, "/", r.steps, "  loss ", fixed(r.loss, 4));
    if (validation_) line += cat("  val ", fixed(*validation_, 4));
    line += cat("  ", human_count(r.tokens_per_second), " tok/s  waiting ", fixed(100 * r.wait_share, 0), "%  ",
                human_bytes(static_cast<double>(r.peak_bytes)), "/rank  ETA ", clock_text(left));
    if (skipped > 0) line += cat("  skipped ", skipped);
    since_ += r.seconds;
    if (live_) {
      std::cout << "\r\033[K" << line << (r.validation ? "\n" : "") << std::flush;
    } else if (r.validation || steps_ == 1 || r.step == r.steps || since_ >= between_) {
      std::cout << line << std::endl;
      since_ = 0;
    }
  }
  void finish() const {
    if (live_) std::cout << "\r\033[K" << std::flush;
  }

 private:
  double between_, since_ = 0, spent_ = 0;
  int64_t steps_ = 0;
  bool live_;
  std::optional<double> validation_;
};

struct Baselines {
  double unigram = 0;             // entropy of the validation data itself
  std::optional<double> trigram;  // counted on the training data
};

Baselines baselines(const Corpora& data, int64_t vocabulary) {
  constexpr int64_t kMost = 64'000'000;  // counting more would take minutes
  Baselines result{unigram_entropy(data.validation), {}};
  if (data.training.tokens() <= kMost && data.training.is_bytes())
    result.trigram = ngram_loss(data.training, data.validation, 3, vocabulary);
  return result;
}

// Where a run lists what it could not use.
fs::path skipped_file(const Job& job) { return fs::path(job.config.run.folder) / "skipped.txt"; }

void write_skipped(const Job& job) {
  const auto skipped = job.source->skipped();
  fs::remove(skipped_file(job));  // of an earlier start
  if (skipped.empty()) return;
  std::ofstream out(skipped_file(job));
  for (const std::string& problem : skipped) out << problem << "\n";
}

void print_summary(const Job& job, const TrainingResult& result, const Estimate& e) {
  const StepReport& last = result.last;
  const auto mb = [](int64_t bytes) { return human_bytes(static_cast<double>(bytes)); };
  const double rate = result.seconds > 0 ? static_cast<double>(result.tokens) / result.seconds : 0;
  std::cout << "\n"
            << (result.stopped ? cat("stopped at step ", last.step, " of ", last.steps) : "done") << ": "
            << human_count(static_cast<double>(result.tokens)) << " tokens in " << clock_text(result.seconds) << ", "
            << human_count(rate) << " tokens/s\n"
            << "  training loss     " << fixed(last.loss, 4) << (job.tokens ? " nats a token\n" : " mean square\n");
  if (result.validation && !job.tokens) std::cout << "  validation loss   " << fixed(*result.validation, 4) << "\n";
  if (result.validation && job.tokens) {
    const Baselines base = baselines(job.tokens->data(), std::get<LlamaConfig>(job.model).vocabulary);
    std::cout << "  validation loss   " << fixed(*result.validation, 4)
              << " (the best unigram model of the same data: " << fixed(base.unigram, 4);
    if (base.trigram) std::cout << "; a trigram model counted on the training data: " << fixed(*base.trigram, 4);
    std::cout << ")\n";
  }
  if (result.bad_steps > 0)
    std::cout << "  without effect    " << plural(result.bad_steps, "step")
              << ", whose loss or gradient was not finite\n";
  std::cout << "  memory            " << mb(last.peak_bytes) << " a rank\n";
  if (job.config.parallel.ranks > 1)
    std::cout << "  sent in a step    " << mb(last.attention.total()) << " a rank for attention; ring would have sent "
              << mb(e.ring_attention_bytes) << " (" << ratio_text(last.attention.total(), e.ring_attention_bytes)
              << " of it); " << mb(last.weight_bytes) << " for gradients and weights\n";
  if (const auto skipped = job.source->skipped(); !skipped.empty())
    std::cout << "  skipped           " << plural(static_cast<int64_t>(skipped.size()), "item")
              << " that could not be used, listed in " << skipped_file(job).string()
              << "; the first: " << skipped.front() << "\n";
  std::cout << "  checkpoint        " << find_checkpoint(job.config.run.folder).string() << "\n";
}

nlohmann::json to_json(const Job& job, const Estimate& e) {
  nlohmann::json json{
      {"parameters", e.parameters},
      {"tokens", job.config.train.tokens},
      {"batch", job.config.train.batch},
      {"ranks", job.config.parallel.ranks},
      {"grid", to_text(attention_options(job.config).grid)},
      {"data", job.source->describe()},
      {"memory_bytes",
       {{"weights", e.weights},
        {"gradients", e.gradients},
        {"optimizer", e.optimizer},
        {"saved", e.saved},
        {"working", e.working},
        {"rank", e.rank_bytes()}}},
      {"step_bytes",
       {{"attention", e.attention_bytes}, {"ring_attention", e.ring_attention_bytes}, {"weights", e.weight_bytes}}}};
  if (job.tokens) {
    json["training_tokens"] = job.tokens->data().training.tokens();
    json["validation_tokens"] = job.tokens->data().validation.tokens();
  }
  return json;
}

nlohmann::json to_json(const TrainingResult& result, const Source& source) {
  const StepReport& last = result.last;
  nlohmann::json json = {
      {"step", last.step},
      {"losses", result.losses},
      {"bad_steps", result.bad_steps},
      {"seconds", result.seconds},
      {"tokens_per_second", result.seconds > 0 ? static_cast<double>(result.tokens) / result.seconds : 0},
      {"peak_bytes", last.peak_bytes},
      {"static_bytes", result.static_bytes},
      {"attention_bytes", last.attention.total()},
      {"weight_bytes", last.weight_bytes},
      {"wait_share", last.wait_share},
      {"skipped", source.skipped().size()},
      {"stopped", result.stopped}};
  if (result.validation) json["validation"] = *result.validation;
  return json;
}

// A few lines of the model's own, after the first line of the validation data.
void print_text(const Job& job, const Corpora& data) {
  if (!data.training.is_bytes() || std::get<LlamaConfig>(job.model).vocabulary != 256) return;
  if (data.validation.tokens() < 2) return;
  const auto model = load_llama(find_checkpoint(job.config.run.folder), at::kFloat);
  std::vector<int64_t> prompt(std::min<int64_t>(80, data.validation.tokens()));
  data.validation.read(0, static_cast<int64_t>(prompt.size()), 1, prompt.data());
  std::cout << "  sample            after [" << printable(bytes_text(prompt)) << "]:\n\n";
  std::string text;
  generate(*model, prompt, {.tokens = 240}, [&](int64_t token) {
    text += static_cast<char>(token);
    return true;
  });
  std::cout << printable(text, "    ") << "\n";
}

// What drawing takes on one rank, in floating-point operations.
double drawing_work(const DitConfig& shape, const DrawOptions& options) {
  const auto tokens = static_cast<double>(shape.tokens()), parameters = static_cast<double>(shape.parameters());
  const double pass = 2 * parameters * tokens + 4 * tokens * tokens * static_cast<double>(shape.layers * shape.dim());
  const int passes = options.guidance != 1 && shape.classes > 0 ? 2 : 1;
  return pass * passes * static_cast<double>(options.steps) * static_cast<double>(options.labels.size());
}

// A few pictures of each class, where they are quick to draw and can be seen; otherwise how to draw them.
void draw_pictures(const Job& job) {
  constexpr int64_t kEach = 4;
  constexpr double kMostWork = 1e12;  // some twenty seconds on two cores
  const auto& shape = std::get<DitConfig>(job.model);
  DrawOptions options;
  if (!shape.guided) options.guidance = 1;  // it cannot draw without a class
  for (int64_t one : usual_classes(shape)) options.labels.insert(options.labels.end(), kEach, one);
  const bool seen = shape.channels == 1 || shape.channels == 3;
  const fs::path file = fs::path(job.config.run.folder) / (seen ? "samples.png" : "samples.safetensors");
  if (interrupts > 0 || !seen || drawing_work(shape, options) > kMostWork) {
    std::cout << "  samples           draw some with: " << program_invocation_name << " sample --checkpoint "
              << job.config.run.folder << " --out " << file.string() << "\n";
    return;
  }
  const auto model = load_dit(find_checkpoint(job.config.run.folder), at::kFloat);
  const AttentionOptions attention;  // one rank
  std::optional<Progress> progress("drawing samples");
  run_ranks(1, thread_count(job.config), [&](const std::shared_ptr<Group>& group) {
    write_png(file, picture_grid(draw(*model, options, attention, group), kEach));
  });
  progress.reset();
  std::cout << "  samples           " << file.string() << " (a row for each class; more: sample --checkpoint "
            << job.config.run.folder << ")\n";
}

void run(const TrainFlags& flags) {
  if (flags.help_config) {
    TrainConfig defaults;
    std::cout << help_text(settings_of(defaults));
    return;
  }
  const Job job = resolve(flags);
  const TrainConfig& config = job.config;
  const Estimate estimated = estimate(config, job.model);
  check_start(flags, job);
  if (!flags.json) print_job(job, estimated);
  if (flags.dry_run) {
    if (flags.json)
      std::cout << to_json(job, estimated).dump(2) << "\n";
    else
      std::cout << "dry run: settings, sizes, memory, folders and "
                << (job.checkpoint.empty() ? "weights" : "the checkpoint") << " were checked"
                << (!job.tokens                              ? "; pictures are when they are read"
                    : job.tokens->data().training.is_bytes() ? ""
                                                             : "; token ids are when they are read")
                << "; nothing was trained or written\n";
    return;
  }
  if (!flags.json) std::cout << std::endl;

  watch_interrupts();
  Display display(5);
  Training training{
      config, [&] { return make_model(job.model); }, job.source, job.from, job.checkpoint, flags.profile, true, {}};
  size_t skipped = 0;
  training.observer.on_step = [&](const StepReport& report) {
    const size_t now = job.source->skipped().size();
    if (now != std::exchange(skipped, now)) write_skipped(job);  // also for a run that is killed
    if (!flags.json) display.show(report, skipped);
  };
  training.observer.stop = [] { return interrupts > 0; };
  const TrainingResult result = train(training);
  write_skipped(job);
  if (flags.json) {
    std::cout << to_json(result, *job.source).dump(2) << "\n";
    return;
  }
  display.finish();
  at::set_num_threads(thread_count(config));
  print_summary(job, result, estimated);
  if (!flags.profile.empty()) std::cout << "  trace             " << flags.profile << " (open it in ui.perfetto.dev)\n";
  std::cout << std::flush;  // what is drawn now may take a while, and need not be waited for
  trained = true;
  if (job.tokens)
    print_text(job, job.tokens->data());
  else
    draw_pictures(job);
  if (result.stopped)
    std::cout << "\ngo on with: " << program_invocation_name << " train --resume " << config.run.folder << "\n";
}

}  // namespace

void add_train(CLI::App& app) {
  auto flags = std::make_shared<TrainFlags>();
  CLI::App* command = app.add_subcommand("train", "Train a GPT or a DiT with its sequence split over a grid of ranks");
  command->add_option("config", flags->config, "A TOML file; see --help-config and examples/configs");
  command->add_option("--set", flags->sets, "Override a setting: --set train.tokens=8192; may be given many times")
      ->allow_extra_args(false)  // one each, or it would take the config file too
      ->take_all()
      ->type_name("KEY=VALUE");
  command->add_option("--from", flags->from, "Start from the weights in this folder (config.json, model.safetensors)")
      ->type_name("FOLDER");
  command->add_option("--resume", flags->resume, "Go on with this run's newest checkpoint, or this checkpoint")
      ->type_name("FOLDER");
  command->add_option("--profile", flags->profile, "Write the first steps as a trace for Perfetto")->type_name("FILE");
  command->add_flag("--dry-run", flags->dry_run,
                    "Say what would be trained, its memory and bytes, and check everything");
  command->add_flag("--help-config", flags->help_config, "Explain every setting");
  command->add_flag("--json", flags->json, "Print the result as JSON");
  command->footer(
      "Example: startrail train --set data.path=src --set parallel.ranks=8 --set parallel.grid=startrail:2\n"
      "Ctrl-C saves a checkpoint and stops; a second one stops at once.");
  command->callback([flags] { run(*flags); });
}

}  // namespace startrail::cli

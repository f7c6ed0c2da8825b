#include "cli/train_report.h"

#include <cmath>
#include <filesystem>
#include <iostream>
#include <nlohmann/json.hpp>
#include <set>

#include "cli/command.h"
#include "startrail/base/error.h"
#include "startrail/train/data/tokens/ngram.h"
#include "startrail/train/store/run_files.h"

namespace startrail::cli {
namespace {

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

std::string loss_text(double loss) { return std::isfinite(loss) ? fixed(loss, 4) : "not a number"; }

std::string describe(const ModelConfig& model) {
  const Dimensions d = dimensions(model);
  std::string text = cat(d.layers, " layers, dim ", d.dim, ", ", d.heads, " heads");
  const auto* dit = std::get_if<DitConfig>(&model);
  if (!dit) {
    const auto& gpt = std::get<LlamaConfig>(model);
    const int64_t all = gpt.layers, some = std::count(gpt.windowed.begin(), gpt.windowed.end(), true);
    return cat(
        gpt.kind == "llama" ? "" : gpt.kind + ", ", text, " (", d.key_heads, " key/value), vocabulary ", gpt.vocabulary,
        gpt.window == 0 ? "" : cat(", window ", gpt.window, " in ", some > 0 ? some : all, " of ", all, " layers"));
  }
  const auto sides = [&](const std::array<int64_t, 3>& s) {
    return cat(dit->size[0] > 1 ? cat(s[0], " x ") : "", s[1], " x ", s[2]);
  };
  return cat("DiT, ", text, ", ", sides(dit->size), " with ", dit->channels, " channels in patches of ",
             sides(dit->patch), ", ", dit->classes, " classes, ", dit->objective);
}

// Where they are and what they compute with.
std::string ranks_text(const TrainConfig& config, const World& world) {
  const std::set<std::string> nodes(world.nodes().begin(), world.nodes().end());
  if (world.ranks_here() == world.size() && nodes.size() == 1) return cat(" on ", thread_count(config), " threads");
  return cat(" on ", nodes.size(), " nodes, with ",
             plural(world.threads_each(static_cast<int>(config.parallel.threads)), "thread"), " each");
}

// Why the ranks form this grid, where that was left open.
std::string choice_text(const TrainConfig& config, const ModelConfig& model) {
  const auto choice = sequence_ranks(config) > 1 ? grid_choice(config, model) : std::nullopt;
  if (!choice) return "";
  return cat("grid      auto: of ", plural(choice->fitting, "grid"), " that fit, the one that sends the fewest bytes",
             choice->equal > 1 ? cat(", and of the ", choice->equal, " that send so few the one that holds least") : "",
             "\n");
}

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

}  // namespace

void print_job(const TrainJob& job, const Estimate& e, const World& world) {
  const TrainConfig& c = job.config;
  const AttentionOptions attention = attention_options(c, job.model);
  const auto mb = [](int64_t bytes) { return human_bytes(static_cast<double>(bytes)); };
  std::cout << "model     " << human_count(static_cast<double>(e.parameters)) << " parameters: " << describe(job.model)
            << ", " << c.train.precision << "\n"
            << "data      " << c.data.path << ": " << job.source->describe() << "\n"
            << "steps     " << c.train.steps << " of " << c.train.batch << " x " << c.train.tokens << " tokens ("
            << fixed(static_cast<double>(c.train.steps * c.train.batch) / static_cast<double>(job.source->epoch()), 2)
            << " epochs)" << (c.train.warmup >= c.train.steps ? ", all of them in the warm-up" : "")
            << (job.step > 0 ? cat(", from step ", job.step) : "") << "\n"
            << "ranks     " << c.parallel.ranks << ranks_text(c, world) << ": " << c.parallel.data_parallel
            << " data parallel x " << to_text(attention.grid);
  const std::string scheme = scheme_of(attention.grid);
  std::cout << (scheme.empty() || c.parallel.ranks == 1 ? "" : cat(" (", scheme, ")")) << ", "
            << to_text(attention.order) << "\n"
            << choice_text(c, job.model) << "memory    " << mb(e.rank_bytes()) << " a rank: weights " << mb(e.weights)
            << ", gradients " << mb(e.gradients) << ", optimizer " << mb(e.optimizer) << ", saved activations "
            << mb(e.saved) << ", working " << mb(e.working) << "\n"
            << "a step    sends " << mb(e.attention_bytes)
            << " a rank for attention (ring: " << mb(e.ring_attention_bytes) << ", "
            << ratio_text(e.attention_bytes, e.ring_attention_bytes) << " of it) and " << mb(e.weight_bytes)
            << " for gradients and weights\n"
            << "run       " << c.run.folder << "\n";
}

Display::Display(double seconds_between) : between_(seconds_between), live_(shows_live(std::cout)) {}

void Display::show(const StepReport& r, size_t skipped) {
  spent_ += r.seconds;
  ++steps_;
  if (r.validation) validation_ = r.validation;
  const double left = spent_ / static_cast<double>(steps_) * static_cast<double>(r.steps - r.step);
  std::string line = cat("step ", r.step, "/", r.steps, "  loss ", loss_text(r.loss));
  if (validation_) line += cat("  val ", loss_text(*validation_));
  line += cat("  ", human_count(r.tokens_per_second), " tok/s  waiting ", fixed(100 * r.wait_share, 0), "%  ",
              human_bytes(static_cast<double>(r.peak_bytes)), "/rank  ETA ", clock_text(left));
  if (skipped > 0) line += cat("  skipped ", skipped);
  since_ += r.seconds;
  if (!std::isfinite(r.loss) && !diverged_) {
    std::cout << (live_ ? "\r\033[K" : "") << "the loss is no longer a number: the run diverged at step " << r.step
              << ", which changed nothing; a few such steps in a row end it" << std::endl;
  }
  diverged_ = !std::isfinite(r.loss);
  if (live_) {
    // One that wraps could not be wiped. A line that stays may.
    if (!r.validation) line = line.substr(0, live_columns() - 1);
    std::cout << "\r\033[K" << line << (r.validation ? "\n" : "") << std::flush;
  } else if (r.validation || steps_ == 1 || r.step == r.steps || since_ >= between_) {
    std::cout << line << std::endl;
    since_ = 0;
  }
}

void Display::finish() const {
  if (live_) std::cout << "\r\033[K" << std::flush;
}

void print_summary(const TrainJob& job, const TrainingResult& result, const Estimate& e) {
  const StepReport& last = result.last;
  const auto mb = [](int64_t bytes) { return human_bytes(static_cast<double>(bytes)); };
  const double rate = result.seconds > 0 ? static_cast<double>(result.tokens) / result.seconds : 0;
  std::cout << "\n"
            << (result.stopped ? cat("stopped at step ", last.step, " of ", last.steps) : "done") << ": "
            << human_count(static_cast<double>(result.tokens)) << " tokens in " << clock_text(result.seconds) << ", "
            << human_count(rate) << " tokens/s\n"
            << "  training loss     " << loss_text(last.loss) << (job.tokens ? " nats a token\n" : " mean square\n");
  if (result.validation && !job.tokens) std::cout << "  validation loss   " << loss_text(*result.validation) << "\n";
  if (result.validation && job.tokens) {
    const Baselines base = baselines(job.tokens->data(), std::get<LlamaConfig>(job.model).vocabulary);
    std::cout << "  validation loss   " << loss_text(*result.validation)
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
              << " that could not be used, listed in "
              << (std::filesystem::path(job.config.run.folder) / kSkippedFile).string()
              << "; the first: " << skipped.front() << "\n";
  std::cout << "  checkpoint        " << find_checkpoint(job.config.run.folder).string() << "\n";
}

nlohmann::json to_json(const TrainJob& job, const Estimate& e, int64_t base) {
  nlohmann::json json{
      {"parameters", e.parameters},
      {"tokens", job.config.train.tokens},
      {"batch", job.config.train.batch},
      {"ranks", job.config.parallel.ranks},
      {"grid", to_text(attention_options(job.config, job.model).grid)},
      {"data", job.source->describe()},
      {"memory_bytes",
       {{"weights", e.weights},
        {"gradients", e.gradients},
        {"optimizer", e.optimizer},
        {"saved", e.saved},
        {"working", e.working},
        {"rank", e.rank_bytes()},
        {"process", base}}},
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

}  // namespace startrail::cli

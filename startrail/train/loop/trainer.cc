#include "startrail/train/loop/trainer.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>

#include <cmath>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <numeric>
#include <random>
#include <set>

#include "startrail/base/error.h"
#include "startrail/base/file.h"
#include "startrail/base/system.h"
#include "startrail/base/trace.h"
#include "startrail/run/comm/clocks.h"
#include "startrail/run/memory.h"
#include "startrail/train/loop/event_file.h"
#include "startrail/train/loop/run_lock.h"
#include "startrail/train/loop/validate.h"
#include "startrail/train/model/weights.h"

namespace startrail {
namespace {

namespace fs = std::filesystem;

constexpr int kBadSteps = 5;  // in a row, after which a run is given up
constexpr const char* kAdvice = "; lower train.learning_rate, or go on from an earlier checkpoint";
constexpr int64_t kTracedSteps = 3;  // enough to see the pattern; a long trace is too large to open

double now() { return RankTrace::now_us() * 1e-6; }

// The ranks that share a sequence with this one: neighbours.
std::shared_ptr<Group> sequence_group(const Group& world, int size) {
  std::vector<int> ranks(size);
  std::iota(ranks.begin(), ranks.end(), world.rank() / size * size);
  return world.part(ranks);
}

// Every rank writes into the run's folder: one that another host cannot see is found out before the work.
void check_access(const fs::path& folder, Group& world) {
  const fs::path mark = folder / ".here";
  std::string word;
  world.control().agree([&] {
    if (world.rank() != 0) return;
    word = hex_text(std::random_device()()) + hex_text(std::random_device()());
    write_text(mark, word);
  });
  word = world.control().gather(word)[0];
  std::string problem;
  try {
    const fs::path own = folder / cat(".here-", world.rank());
    std::string seen;
    if (!(std::ifstream(mark) >> seen) || seen != word) throw UserError("it does not see what rank 0 wrote there");
    write_text(own, word);
    fs::remove(own);
  } catch (const std::exception& error) {
    problem = cat("rank ", world.rank(), " on ", host_name(), " cannot use run.folder ", folder.string(), ": ",
                  error.what(), "; it must be the same folder for all ranks, on a file system that their hosts share");
  }
  const auto problems = world.control().gather(problem);
  if (world.rank() == 0) fs::remove(mark);
  for (const std::string& one : problems)
    if (!one.empty()) throw UserError(one);
}

class RankTrainer {
 public:
  RankTrainer(const Training& training, const std::shared_ptr<Group>& world, std::shared_ptr<MemoryAccount> memory)
      : training_(training),
        config_(training.config),
        world_(world),
        group_(sequence_group(*world, sequence_ranks(config_))),
        memory_(std::move(memory)),
        model_(training.make_model()),
        row_(*model_, compute_type(config_)),
        optimizer_(*model_, row_, world, optimizer_options(config_)),
        attention_(training.attention) {
    // Nobody reads a folder that another process may be changing.
    on_first([&] {
      fs::create_directories(config_.run.folder);
      lock_.emplace(config_.run.folder);
      clear_partial(config_.run.folder);
      if (training.companions) companions_ = training.companions();
    });
    if (training.save) check_access(config_.run.folder, *world_);
    if (!training.checkpoint.empty()) {
      world_->control().agree([&] { state_ = read_state(training.checkpoint); });
      load_checkpoint(training.checkpoint, *model_, optimizer_, *world_);
      optimizer_.steps = state_.updates;
    } else if (!training.weights.empty()) {
      at::Tensor values;
      world_->control().agree(
          [&] { values = read_shard(open_weights(training.weights), *model_, optimizer_.shard()); });
      optimizer_.set_weights(values);
    } else {
      optimizer_.set_weights(initial_values(*model_, static_cast<uint64_t>(config_.train.seed), optimizer_.shard()));
    }
    static_bytes_ = memory_->bytes;
    first_step_ = state_.step;
    TrainConfig written = config_;
    // So that the run can be gone on with and evaluated from any folder.
    for (std::string* path : {&written.data.path, &written.data.validation_path, &written.run.folder})
      if (!path->empty() && !(is_dit(config_) && *path == kShapes)) *path = fs::weakly_canonical(*path).string();
    state_.settings = to_toml(settings_of(written));
    state_.data = training.source->fingerprint();
    on_first([&] {
      write_text(fs::path(config_.run.folder) / kSettingsFile, state_.settings);
      metrics_.emplace(config_.run.folder, run_head());
      if (training.tensorboard) events_.emplace(config_.run.folder, state_.step);
    });
    list_skipped();
  }

  TrainingResult run() {
    TrainingResult result;
    result.static_bytes = static_bytes_;
    while (state_.step < config_.train.steps && !result.stopped) {
      record(state_.step - first_step_ < kTracedSteps);
      StepReport report = step(result.stopped);
      const bool last = state_.step == config_.train.steps;
      // Written down before it is saved, so that no step is missing from what goes on from there; and saved before it
      // is validated: who stops a run wants it safe, not measured.
      if (metrics_) metrics_->write(report);
      if (events_) events_->write(report);
      // A step that went wrong must not push out the checkpoints one can go back to; but an end is saved in any case.
      const bool due_now = due(config_.run.save_every) && bad_steps_ == 0;
      const bool saves = due_now || last || result.stopped;
      if (saves) report.save_seconds = save();
      if (saves && !last && !result.stopped) result.stopped = any_asked_to_stop();  // while it was saved
      if (!result.stopped && (due(config_.validate.every) || last)) report.validation = validation(result.stopped);
      if (result.stopped && !saves) report.save_seconds = save();  // asked to stop while it was validated
      if (report.validation) result.validation = report.validation;
      if (report.validation && metrics_) metrics_->write(report.step, *report.validation);
      if (report.validation && events_) events_->write(report.step, *report.validation);
      list_skipped();
      result.losses.push_back(report.loss);
      result.bad_steps += bad_steps_ > 0;
      result.seconds += report.seconds;
      result.tokens += config_.train.batch * config_.train.tokens;
      result.last = report;
      if (world_->rank() == 0 && training_.observer.on_step) training_.observer.on_step(report);
    }
    if (!result.stopped && (bad_steps_ > 0 || (result.last.validation && !std::isfinite(*result.last.validation))))
      throw UserError(cat(divergence(result.last), " and did not recover by its end, step ", state_.step, kAdvice));
    result.trace = trace_;
    result.traced = std::move(traced_);
    return result;
  }

 private:
  RunHead run_head() const {
    return {.step = state_.step,
            .name = fs::weakly_canonical(config_.run.folder).filename().string(),
            .loss_unit = is_dit(config_) ? "mean square" : "nats a token",
            .estimated_bytes = training_.estimated_bytes,
            .config = changed_settings(config_)};
  }

  // What the first rank does in the run's folder, if anything is saved: all go on when it is done, or none.
  void on_first(const std::function<void()>& body) {
    world_->control().agree([&] {
      if (training_.save && world_->rank() == 0) body();
    });
  }

  void record(bool wanted) {
    if (training_.profile.empty()) return;
    if (wanted && !trace_) trace_ = std::make_shared<RankTrace>(world_->rank());
    world_->meter().record_to(wanted ? trace_ : nullptr);
    group_->meter().record_to(wanted ? trace_ : nullptr);
  }

  // Runs `body` and writes its span into the trace, if there is one.
  template <class Body>
  auto traced(const char* name, const Body& body) {
    RankTrace* trace = world_->meter().trace();
    const double start = trace ? trace->now_us() : 0;
    auto result = body();
    if (trace) trace->add({name, TraceKind::phase, start, trace->now_us()});
    return result;
  }

  // After every step in which there is more, so that the list of a run that is killed is whole. Processes each know
  // what they could not read themselves.
  void list_skipped() {
    if (!training_.save || !is_dit(config_) || config_.data.on_error != "skip") return;
    std::set<std::string> problems;
    for (const std::string& text : world_->control().gather(join(training_.source->skipped(), "\n")))
      for (const std::string& problem : split(text, '\n')) problems.insert(problem);
    if (world_->rank() != 0 || skipped_ == problems.size()) return;
    skipped_ = problems.size();
    write_skipped(config_.run.folder, {problems.begin(), problems.end()});
  }

  void doing(const std::string& what) const {
    if (training_.doing) training_.doing(what);
  }

  bool due(int64_t every) const { return every > 0 && state_.step % every == 0; }

  StepReport step(bool& stopped) {
    doing(cat("step ", state_.step + 1));
    const double start = now();
    world_->meter().reset();
    group_->meter().reset();
    const int64_t groups = config_.parallel.data_parallel, share = config_.train.batch / groups;
    const int64_t first = state_.examples + world_->rank() / group_->size() * share;
    // Gradients are scaled for a step in which every token counts, and put right below when some do not.
    const double nominal = static_cast<double>(config_.train.batch * config_.train.tokens);
    double sum = 0, count = 0;
    for (int64_t i = 0; i < share; ++i) {
      const Example example =
          traced("data", [&] { return training_.source->training(first + i, attention_.order, *group_); });
      const Sequence sequence = make_sequence(example, attention_, group_, config_.train.recompute);
      const Loss loss = traced("forward", [&] { return model_->loss(example, sequence); });
      traced("backward", [&] {
        torch::autograd::backward({loss.sum}, {at::full({}, 1 / nominal, loss.sum.options())});
        row_.collect_gradients();
        return 0;
      });
      sum += loss.sum.item<double>();
      count += static_cast<double>(loss.count);
    }
    StepReport report = sum_up(sum, count, stopped);
    report.learning_rate = learning_rate(schedule_options(config_), state_.step);
    report.gradient_norm =
        traced("optimizer", [&] { return optimizer_.step(report.learning_rate, nominal / valid_tokens_); });
    check_finite(report);
    ++state_.step;
    state_.examples += config_.train.batch;
    report.step = state_.step;
    report.steps = config_.train.steps;
    report.seconds = now() - start;
    if (RankTrace* trace = world_->meter().trace())
      trace->add({cat("step ", state_.step), TraceKind::step, start * 1e6, (start + report.seconds) * 1e6});
    state_.seconds += report.seconds;
    report.tokens = state_.examples * config_.train.tokens;
    report.tokens_per_second = nominal / report.seconds;
    measure(report);
    if (world_->meter().trace()) traced_.push_back(report);
    return report;
  }

  bool asked_to_stop() const {
    return world_->rank() == training_.asks && training_.observer.stop && training_.observer.stop();
  }

  bool any_asked_to_stop() const {
    const std::vector<double> asked = world_->control().gather(asked_to_stop() ? 1.0 : 0.0);
    return std::ranges::any_of(asked, [](double one) { return one != 0; });
  }

  // Loss over all ranks, and whether one of them was asked to stop.
  StepReport sum_up(double sum, double count, bool& stopped) {
    double total = 0;
    valid_tokens_ = 0;
    const auto all = world_->control().gather(std::vector{sum, count, asked_to_stop() ? 1.0 : 0.0});
    for (const auto& values : all) {
      total += values[0];
      valid_tokens_ += values[1];
      stopped = stopped || values[2] != 0;
    }
    if (valid_tokens_ == 0)
      throw UserError(cat("step ", state_.step + 1, " has no token to predict: documents of one token only?"));
    StepReport report;
    report.loss = total / valid_tokens_;
    return report;
  }

  // Time, memory and bytes of the step just done, over all ranks.
  void measure(StepReport& report) {
    const Counts &attention = group_->meter().counts(), &weights = world_->meter().counts();
    const Volume sent = attention.sent();
    std::vector<double> mine{report.seconds, attention.wait_seconds() + weights.wait_seconds(),
                             static_cast<double>(memory_->peak_bytes), static_cast<double>(weights.sent().total()),
                             static_cast<double>(sent.total())};
    for (Traffic kind : kTraffic) mine.push_back(static_cast<double>(sent[kind]));
    double busiest = -1, seconds = 0, waiting = 0;
    for (const auto& values : world_->control().gather(mine)) {
      seconds += values[0];
      waiting += values[1];
      report.peak_bytes = std::max(report.peak_bytes, static_cast<int64_t>(values[2]));
      report.weight_bytes = std::max(report.weight_bytes, static_cast<int64_t>(values[3]));
      if (values[4] <= busiest) continue;
      busiest = values[4];
      for (Traffic kind : kTraffic) report.attention[kind] = static_cast<int64_t>(values[5 + static_cast<int>(kind)]);
    }
    report.wait_share = waiting / seconds;
  }

  void check_finite(const StepReport& report) {
    bad_steps_ = std::isfinite(report.gradient_norm) && std::isfinite(report.loss) ? 0 : bad_steps_ + 1;
    if (bad_steps_ == 1) diverged_ = state_.step + 1;
    if (bad_steps_ >= kBadSteps)
      throw UserError(cat(divergence(report), " and did not recover in ", kBadSteps, " steps", kAdvice));
  }

  // What is no longer finite: the loss, or only what is made of it.
  std::string divergence(const StepReport& report) const {
    const bool number = std::isfinite(report.loss);
    const bool validated = report.validation && !std::isfinite(*report.validation);
    return cat(!number     ? "the loss is no longer a number"
               : validated ? "the validation loss is no longer a number"
                           : "the gradient is not finite",
               ": the run diverged at step ", bad_steps_ > 0 ? diverged_ : report.step);
  }

  std::optional<double> validation(bool& stopped) {
    if (training_.source->validation_count() == 0) return std::nullopt;
    doing(cat("validation after step ", state_.step));
    std::function<bool()> stop;
    if (training_.observer.stop) stop = [this] { return asked_to_stop(); };
    const Validation found = validate(*model_, *training_.source, attention_, *world_, group_, 0, stop);
    // The last step is done and saved: there is nothing to go on with.
    stopped = found.stopped && state_.step < config_.train.steps;
    return found.loss;
  }

  // The seconds it took.
  double save() {
    if (!training_.save) return 0;
    const double start = now();
    doing(cat("saving after step ", state_.step));
    const at::Tensor& mine = optimizer_.weights();
    const bool finite = mine.numel() == 0 || std::isfinite(mine.abs().max().item<float>());
    for (double one : world_->control().gather(finite ? 0.0 : 1.0))
      if (one != 0)
        throw UserError(cat("the weights are no longer numbers: the run diverged by step ", state_.step, kAdvice));
    state_.updates = optimizer_.steps;
    save_checkpoint(config_.run.folder, state_, *model_, optimizer_, *world_, config_.run.keep, companions_);
    const double seconds = now() - start;
    if (world_->rank() == 0 && training_.observer.on_checkpoint)
      training_.observer.on_checkpoint(find_checkpoint(config_.run.folder));
    return seconds;
  }

  const Training& training_;
  const TrainConfig& config_;
  std::shared_ptr<Group> world_, group_;
  std::shared_ptr<MemoryAccount> memory_;
  std::unique_ptr<Model> model_;
  ParameterRow row_;
  ShardedAdamW optimizer_;
  AttentionOptions attention_;
  TrainingState state_;
  Companions companions_;  // of rank 0
  int64_t first_step_ = 0;
  int64_t static_bytes_ = 0;
  double valid_tokens_ = 0;
  int bad_steps_ = 0;     // one after the other, up to now
  int64_t diverged_ = 0;  // the first of them
  std::optional<RunLock> lock_;
  std::optional<Metrics> metrics_;
  std::optional<EventFile> events_;
  std::optional<size_t> skipped_;  // how many problems are listed
  std::shared_ptr<RankTrace> trace_;
  std::vector<StepReport> traced_;  // the steps in it
};

// What a trace shows and under which conditions, with the waiting that the steps themselves counted.
nlohmann::json about_trace(const Training& training, const std::vector<StepReport>& steps, const World& world) {
  const TrainConfig& config = training.config;
  const Grid& grid = training.attention.grid;
  double seconds = 0, waiting = 0;
  for (const StepReport& step : steps) {
    seconds += step.seconds;
    waiting += step.seconds * step.wait_share;
  }
  return {{"source", "measured"},
          {"name", cat(name_of(grid), " on ", plural(config.parallel.ranks, "rank"))},
          {"what", "training"},
          {"grid", to_text(grid)},
          {"ranks", config.parallel.ranks},
          {"data_parallel", config.parallel.data_parallel},
          {"threads_each", world.threads_each(static_cast<int>(config.parallel.threads))},
          {"ranks_here", world.ranks_here()},
          {"comm", world.name()},
          {"tokens", config.train.tokens},
          {"batch", config.train.batch},
          {"precision", config.train.precision},
          {"steps", {steps.front().step, steps.back().step}},
          {"wait_share", waiting / seconds}};
}

}  // namespace

TrainingResult train_rank(const Training& training, const std::shared_ptr<Group>& world) {
  const auto memory = std::make_shared<MemoryAccount>();
  const MemoryScope scope(memory);
  RankTrainer trainer(training, world, memory);
  return trainer.run();
}

TrainingResult train(const Training& training, World& world) {
  STARTRAIL_CHECK(world.size() == training.config.parallel.ranks, world.size(), " ranks in the world");
  Training told = training;
  told.asks = world.first();
  told.doing = [&](const std::string& what) { world.doing(what); };
  TrainingResult result;
  CollectedTraces traces;
  world.run(static_cast<int>(training.config.parallel.threads), [&](const std::shared_ptr<Group>& group) {
    TrainingResult mine = train_rank(told, group);
    if (!training.profile.empty()) {
      CollectedTraces all = collect_traces(*group, mine.trace.get());
      if (group->rank() == 0) traces = std::move(all);
    }
    if (group->rank() == world.first()) result = std::move(mine);
  });
  if (result.trace && !traces.texts.empty())
    write_traces(training.profile, traces.texts, about_trace(training, result.traced, world), traces.shift_us);
  return result;
}

TrainingResult train(const Training& training) {
  return train(training, *local_world(static_cast<int>(training.config.parallel.ranks)));
}

}  // namespace startrail

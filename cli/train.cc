// startrail train: the main job. Says what will be trained, shows it live, and ends with a summary.
#include <signal.h>
#include <unistd.h>
#include <CLI/CLI.hpp>

#include <ATen/Parallel.h>
#include <atomic>
#include <cerrno>
#include <iostream>
#include <nlohmann/json.hpp>

#include "cli/command.h"
#include "cli/full_disk.h"
#include "cli/text_model.h"
#include "cli/tokenize_progress.h"
#include "cli/train_report.h"
#include "cli/world.h"
#include "startrail/base/error.h"
#include "startrail/base/system.h"
#include "startrail/train/loop/keep_samples.h"
#include "startrail/train/store/run_files.h"

namespace startrail::cli {
namespace {

namespace fs = std::filesystem;

struct TrainFlags {
  TrainRequest request;
  CommFlags comm;
  std::string profile;
  bool tensorboard = false, dry_run = false, help_config = false, json = false;
};

constexpr double kKillSeconds = 25;  // launchers kill a process 30 s after they asked it to end

std::atomic<int> interrupts = 0;
std::atomic<double> interrupted_at = 0;  // seconds of the monotonic clock
std::atomic<bool> trained = false;       // all is saved and said
std::atomic<bool> saved = false;         // there is a checkpoint of this run
std::atomic<bool> alone = true;          // the ranks are threads of this process
std::atomic<bool> speaks = true;
std::atomic<int64_t> first_step = 0, steps_done = 0;
std::atomic<double> step_ended_at = 0, step_seconds = 0, save_seconds = 0;  // of the last of each; 0: none yet

// A short text, put together without memory of its own, as handlers of signals must.
class Note {
 public:
  Note& operator<<(const char* text) {
    while (*text && size_ < sizeof text_) text_[size_++] = *text++;
    return *this;
  }
  Note& operator<<(int64_t number) {
    char digits[24];
    char* at = digits + sizeof digits;
    *--at = 0;
    do *--at = static_cast<char>('0' + number % 10);
    while (number /= 10);
    return *this << at;
  }
  ~Note() { static_cast<void>(!write(STDERR_FILENO, text_, size_)); }

 private:
  char text_[256];
  size_t size_ = 0;
};

// What will be finished, and about how long that takes.
void say_stopping(double now) {
  Note note;
  note << "\nstopping: finishing step " << steps_done + 1;
  const double left = std::max(0.0, step_seconds - (now - step_ended_at));
  if (step_seconds > 0) note << " and saving it takes about " << static_cast<int64_t>(left + save_seconds + 1) << " s";
  if (step_seconds == 0) note << " and saving it";
  note << (alone ? "; once more stops at once\n" : "; once more, 2 s from now or later, stops at once\n");
}

void on_interrupt(int) {
  // Ctrl-C reaches a process from the terminal and from its launcher too.
  constexpr double kSameSeconds = 2;
  const double now = clock_seconds(CLOCK_MONOTONIC);
  if (!alone && interrupts > 0 && now - interrupted_at < kSameSeconds) return;
  if (++interrupts > 1 || trained) _exit(130);
  interrupted_at = now;
  if (speaks) say_stopping(now);
}

// A step and its checkpoint that do not end before the launcher kills: a reason to stop without.
std::optional<std::string> out_of_time() {
  if (interrupts == 0 || trained || clock_seconds(CLOCK_MONOTONIC) - interrupted_at < kKillSeconds) return std::nullopt;
  return cat("stopped without saving: the step and its checkpoint took longer than the ", kKillSeconds,
             " s before a launcher kills; ",
             saved || first_step > 0 ? "the last complete checkpoint is whole, go on from it with --resume"
                                     : "there was no checkpoint yet, see run.save_every");
}

void watch_interrupts(ProcessWorld* processes, int64_t from_step) {
  interrupts = 0;  // as in a new process, also in one that trained before
  trained = saved = false;
  steps_done = first_step = from_step;
  step_seconds = save_seconds = 0;
  alone = !processes;
  speaks = !processes || processes->rank() == 0;
  if (processes) processes->set_give_up(out_of_time);
  struct sigaction action {};
  action.sa_handler = on_interrupt;
  action.sa_flags = SA_RESTART;
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
  struct sigaction hangup {};
  sigaction(SIGHUP, nullptr, &hangup);
  if (hangup.sa_handler != SIG_IGN) sigaction(SIGHUP, &action, nullptr);  // a terminal that is closed; not under nohup
}

// What was made of the last checkpoint, or how to draw what takes longer.
void print_sample(const TrainJob& job, const std::optional<KeptSample>& sample) {
  const std::string& folder = job.config.run.folder;
  if (sample && job.tokens) {
    std::cout << "  sample            after [" << printable(sample->prompt) << "]:\n\n"
              << printable(sample->text, "    ") << "\n";
  } else if (sample) {
    std::cout << "  samples           " << sample->picture.string()
              << " (a row for each class; more: sample --checkpoint " << folder << ")\n";
  } else if (!job.tokens) {
    const auto channels = std::get<DitConfig>(job.model).channels;
    std::cout << "  samples           draw some with: " << program_invocation_name << " sample --checkpoint " << folder
              << " --out " << (fs::path(folder) / "samples").string()
              << (channels == 1 || channels == 3 ? ".png" : ".safetensors") << "\n";
  }
}

void run(TrainFlags& flags) {
  if (flags.help_config) {
    TrainConfig defaults;
    std::cout << help_text(settings_of(defaults));
    return;
  }
  ProcessWorld* const processes = flags.comm.open();
  flags.request.restarted = processes && processes->restarted();
  const bool speaks_here = !processes || processes->rank() == 0;
  const TrainJob job = [&] {
    std::optional<Progress> progress;
    std::optional<TokenizeDisplay> display;
    if (!flags.request.tokenizer.empty())
      flags.request.tokenizing = display.emplace().observer();
    else if (speaks_here)
      progress.emplace("opening the data");
    return make_job(flags.request, processes);
  }();
  const TrainConfig& config = job.config;
  // The same line again, after the end.
  if (flags.request.resume == kResumeAuto && job.step >= config.train.steps) {
    std::cout << "nothing to do: " << config.run.folder << " is at step " << job.step << " of " << config.train.steps
              << "\n";
    return;
  }
  const std::shared_ptr<World> shared = world_of(processes, static_cast<int>(config.parallel.ranks));
  World& world = *shared;
  if (processes) processes->set_timeout(std::chrono::seconds(config.parallel.timeout_s));
  world.compare(job_facts(job));
  const int threads = world.threads_each(static_cast<int>(config.parallel.threads));
  const Estimate estimated = estimate(config, job.model, threads);
  const int64_t base = process_memory();  // nothing has been computed yet
  check_start(job, world, flags.profile);
  if (!flags.json) print_job(job, estimated, world);
  std::vector<std::string> warnings = job.warnings;
  if (const std::string crowd = crowd_warning(config.parallel.ranks, thread_count(config));
      !processes && !crowd.empty())
    warnings.push_back(crowd);
  for (const std::string& warning : warnings)
    if (world.first() == 0) std::cerr << "startrail: warning: " << warning << "\n";
  if (flags.dry_run) {
    if (flags.json)
      std::cout << to_json(job, estimated, base).dump(2) << "\n";
    else
      std::cout << "process   " << human_bytes(static_cast<double>(base)) << " besides, for the program and libtorch"
                << (processes ? ", on every rank" : ", once for all ranks") << "\n"
                << "dry run: settings, sizes, memory, folders and "
                << (job.checkpoint.empty() ? "weights" : "the checkpoint") << " were checked"
                << (!job.tokens                              ? "; pictures are when they are read"
                    : job.tokens->data().training.is_bytes() ? ""
                                                             : "; token ids are when they are read")
                << (flags.request.tokenizer.empty() ? "; nothing was trained or written\n"
                                                    : "; nothing was trained, and only tokens were written\n");
    return;
  }
  if (!flags.json) std::cout << std::endl;

  watch_interrupts(processes, job.step);
  if (processes) processes->begin();
  Display display(5);
  Training training = make_training(job);
  training.estimated_bytes = estimated.rank_bytes();
  training.profile = flags.profile;
  training.tensorboard = flags.tensorboard;
  training.observer.on_step = [&](const StepReport& report) {
    steps_done = report.step;
    step_ended_at = clock_seconds(CLOCK_MONOTONIC);
    step_seconds = report.seconds;
    if (report.save_seconds > 0) save_seconds = report.save_seconds;
    if (!flags.json) display.show(report, job.source->skipped().size());
  };
  training.observer.stop = [] { return interrupts > 0; };
  std::optional<KeptSample> sample;
  training.observer.on_checkpoint = [&](const fs::path& checkpoint) {
    sample.reset();
    saved = true;
    if (!config.run.samples || interrupts > 0) return;
    try {
      sample = keep_sample(job, checkpoint, training.observer.stop);
    } catch (const std::exception& error) {  // the run itself goes well
      std::cerr << "startrail: warning: no sample was kept of " << checkpoint.filename().string() << ": "
                << error.what() << "\n";
    }
  };
  const TrainingResult result =
      advise_on_room(cat("make room, such as by deleting older checkpoints; what was saved is whole, in ",
                         (fs::path(config.run.folder) / kCheckpointFolder).string()),
                     [&] { return train(training, world); });
  if (world.first() != 0) return;  // the others have done their part
  if (flags.json) {
    std::cout << to_json(result, *job.source).dump(2) << "\n";
    if (result.stopped) throw Exit{kStopped};
    return;
  }
  display.finish();
  at::set_num_threads(thread_count(config));
  print_summary(job, result, estimated);
  if (!flags.profile.empty())
    std::cout << "  trace             " << flags.profile << " (show it with: " << program_invocation_name << " show "
              << flags.profile << "; ui.perfetto.dev opens it too)\n";
  trained = true;
  print_sample(job, sample);
  std::cout << "  to look at        " << program_invocation_name << " show " << config.run.folder << "\n";
  if (!result.stopped) return;
  std::cout << "\ngo on with: " << program_invocation_name << " train --resume " << config.run.folder << "\n";
  throw Exit{kStopped};
}

}  // namespace

void add_train(CLI::App& app) {
  auto flags = std::make_shared<TrainFlags>();
  CLI::App* command = app.add_subcommand("train", "Train a GPT or a DiT with its sequence split over a grid of ranks");
  command->add_option("config", flags->request.config, "A TOML file; see --help-config and examples/configs");
  command
      ->add_option("--set", flags->request.sets, "Override a setting: --set train.tokens=8192; may be given many times")
      ->allow_extra_args(false)  // one each, or it would take the config file too
      ->take_all()
      ->type_name("KEY=VALUE");
  command
      ->add_option("--from", flags->request.from,
                   "Start from the weights in this folder (config.json, model.safetensors)")
      ->type_name("FOLDER");
  command
      ->add_option(
          "--resume", flags->request.resume,
          "Go on with this run's newest whole checkpoint, or this checkpoint; auto: with that of run.folder if "
          "there is one, else start")
      ->type_name("FOLDER|auto");
  command
      ->add_option("--tokenizer", flags->request.tokenizer,
                   "Tokenize data.path first, into the run's folder; text is otherwise read as bytes. See startrail "
                   "tokenize")
      ->type_name("FOLDER");
  command->add_option("--profile", flags->profile, "Write the first steps as a trace, for startrail show and Perfetto")
      ->type_name("FILE");
  command->add_flag("--tensorboard", flags->tensorboard,
                    "Also write the metrics into the run's folder for TensorBoard");
  flags->comm.add_to(*command, /*timeout=*/false);
  command->add_flag("--dry-run", flags->dry_run,
                    "Say what would be trained, its memory and bytes, and check everything");
  command->add_flag("--help-config", flags->help_config, "Explain every setting");
  command->add_flag("--json", flags->json, "Print the result as JSON");
  command->footer(
      "Example: startrail train --set data.path=src --set parallel.ranks=8 --set parallel.grid=startrail:2\n"
      "         torchrun --nproc-per-node 8 --no-python startrail train --set data.path=src\n"
      "Ctrl-C, SIGTERM and SIGHUP save a checkpoint and stop with exit code 75; a second one stops at once with 130.");
  command->callback([flags] { run(*flags); });
}

}  // namespace startrail::cli

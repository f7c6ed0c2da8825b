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
#include "cli/text_model.h"
#include "cli/tokenize_progress.h"
#include "cli/train_report.h"
#include "cli/world.h"
#include "startrail/base/error.h"
#include "startrail/base/system.h"
#include "startrail/train/loop/draw_pictures.h"
#include "startrail/train/model/generate.h"

namespace startrail::cli {
namespace {

namespace fs = std::filesystem;

struct TrainFlags {
  TrainRequest request;
  CommFlags comm;
  std::string profile;
  bool dry_run = false, help_config = false, json = false;
};

constexpr double kKillSeconds = 25;  // launchers kill a process 30 s after they asked it to end

std::atomic<int> interrupts = 0;
std::atomic<double> interrupted_at = 0;  // seconds of the monotonic clock
std::atomic<bool> trained = false;       // all is saved and said
std::atomic<bool> alone = true;          // the ranks are threads of this process
std::atomic<bool> speaks = true;

void on_interrupt(int) {
  // Ctrl-C reaches a process from the terminal and from its launcher too.
  constexpr double kSameSeconds = 2;
  const double now = clock_seconds(CLOCK_MONOTONIC);
  if (!alone && interrupts > 0 && now - interrupted_at < kSameSeconds) return;
  if (++interrupts > 1 || trained) _exit(130);
  interrupted_at = now;
  if (!speaks) return;
  constexpr char kMessage[] = "\nstopping after this step, with a checkpoint; once more stops at once\n";
  static_cast<void>(!write(STDERR_FILENO, kMessage, sizeof kMessage - 1));
}

// A step and its checkpoint that do not end before the launcher kills: a reason to stop without.
std::optional<std::string> out_of_time() {
  if (interrupts == 0 || trained || clock_seconds(CLOCK_MONOTONIC) - interrupted_at < kKillSeconds) return std::nullopt;
  return cat("stopped without saving: the step and its checkpoint took longer than the ", kKillSeconds,
             " s before a launcher kills; the last complete checkpoint is whole, go on from it with --resume");
}

void watch_interrupts(ProcessWorld* processes) {
  interrupts = 0;  // as in a new process, also in one that trained before
  trained = false;
  alone = !processes;
  speaks = !processes || processes->rank() == 0;
  if (processes) processes->set_give_up(out_of_time);
  struct sigaction action {};
  action.sa_handler = on_interrupt;
  action.sa_flags = SA_RESTART;
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
}

// A few lines of the model's own, after the first line of the validation data.
void print_text(const TrainJob& job, const Corpora& data) {
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

// A few pictures of each class, where they are quick to draw and can be seen; otherwise how to draw them.
void draw_samples(const TrainJob& job) {
  constexpr int64_t kEach = 4;
  constexpr double kMostWork = 1e12;  // some twenty seconds on two cores
  const auto& shape = std::get<DitConfig>(job.model);
  const bool seen = shape.channels == 1 || shape.channels == 3;
  const fs::path file = fs::path(job.config.run.folder) / (seen ? "samples.png" : "samples.safetensors");
  const Drawing drawing = make_drawing({.folder = find_checkpoint(job.config.run.folder),
                                        .count = kEach,
                                        .sharing = {.threads = thread_count(job.config)}});
  if (interrupts > 0 || !seen || drawing_work(drawing) > kMostWork) {
    std::cout << "  samples           draw some with: " << program_invocation_name << " sample --checkpoint "
              << job.config.run.folder << " --out " << file.string() << "\n";
    return;
  }
  try {
    const Progress progress("drawing samples");
    write_pictures(file, draw_pictures(drawing), kEach);
  } catch (const UserError& error) {  // the run itself went well
    std::cout << "  samples           could not be drawn: " << error.what() << "\n";
    return;
  }
  std::cout << "  samples           " << file.string() << " (a row for each class; more: sample --checkpoint "
            << job.config.run.folder << ")\n";
}

void run(TrainFlags& flags) {
  if (flags.help_config) {
    TrainConfig defaults;
    std::cout << help_text(settings_of(defaults));
    return;
  }
  ProcessWorld* const processes = flags.comm.open();
  flags.request.restarted = processes && processes->restarted();
  const TrainJob job = [&] {
    if (flags.request.tokenizer.empty()) return make_job(flags.request, processes);
    TokenizeDisplay display;
    flags.request.tokenizing = display.observer();
    return make_job(flags.request, processes);
  }();
  const TrainConfig& config = job.config;
  const std::shared_ptr<World> shared = world_of(processes, static_cast<int>(config.parallel.ranks));
  World& world = *shared;
  if (processes) processes->set_timeout(std::chrono::seconds(config.parallel.timeout_s));
  world.compare(job_facts(job));
  const int threads = world.threads_each(static_cast<int>(config.parallel.threads));
  const Estimate estimated = estimate(config, job.model, threads);
  check_start(job, world, flags.profile, /*verify=*/flags.dry_run);
  if (!flags.json) print_job(job, estimated, world);
  if (flags.dry_run) {
    if (flags.json)
      std::cout << to_json(job, estimated).dump(2) << "\n";
    else
      std::cout << "dry run: settings, sizes, memory, folders and "
                << (job.checkpoint.empty() ? "weights" : "the checkpoint") << " were checked"
                << (!job.tokens                              ? "; pictures are when they are read"
                    : job.tokens->data().training.is_bytes() ? ""
                                                             : "; token ids are when they are read")
                << (flags.request.tokenizer.empty() ? "; nothing was trained or written\n"
                                                    : "; nothing was trained, and only tokens were written\n");
    return;
  }
  if (!flags.json) std::cout << std::endl;

  watch_interrupts(processes);
  if (processes) processes->begin();
  Display display(5);
  Training training = make_training(job);
  training.profile = flags.profile;
  training.observer.on_step = [&](const StepReport& report) {
    if (!flags.json) display.show(report, job.source->skipped().size());
  };
  training.observer.stop = [] { return interrupts > 0; };
  const TrainingResult result = train(training, world);
  if (world.first() != 0) return;  // the others have done their part
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
    draw_samples(job);
  if (result.stopped)
    std::cout << "\ngo on with: " << program_invocation_name << " train --resume " << config.run.folder << "\n";
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
  command->add_option("--resume", flags->request.resume, "Go on with this run's newest checkpoint, or this checkpoint")
      ->type_name("FOLDER");
  command
      ->add_option("--tokenizer", flags->request.tokenizer,
                   "Tokenize data.path first, into the run's folder; text is otherwise read as bytes. See startrail "
                   "tokenize")
      ->type_name("FOLDER");
  command->add_option("--profile", flags->profile, "Write the first steps as a trace for Perfetto")->type_name("FILE");
  flags->comm.add_to(*command, /*timeout=*/false);
  command->add_flag("--dry-run", flags->dry_run,
                    "Say what would be trained, its memory and bytes, and check everything");
  command->add_flag("--help-config", flags->help_config, "Explain every setting");
  command->add_flag("--json", flags->json, "Print the result as JSON");
  command->footer(
      "Example: startrail train --set data.path=src --set parallel.ranks=8 --set parallel.grid=startrail:2\n"
      "         torchrun --nproc-per-node 8 --no-python startrail train --set data.path=src\n"
      "Ctrl-C saves a checkpoint and stops; a second one stops at once.");
  command->callback([flags] { run(*flags); });
}

}  // namespace startrail::cli

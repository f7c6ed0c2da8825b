#include "cli/train_job.h"

#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fstream>

#include "cli/command.h"
#include "startrail/base/error.h"
#include "startrail/train/loop/estimate.h"
#include "startrail/train/model/weights.h"

namespace startrail::cli {

namespace fs = std::filesystem;

TrainConfig run_config(const TrainingState& state, const fs::path& checkpoint) {
  TrainConfig config;
  read_toml_text(settings_of(config), state.settings, (checkpoint / "training.json").string());
  return config;
}

fs::path model_folder(const std::string& path) {
  if (fs::exists(path) && !fs::exists(fs::path(path) / "training.json") && !has_checkpoint(path)) return path;
  const fs::path checkpoint = find_checkpoint(path);
  verify_checkpoint(checkpoint);
  return checkpoint;
}

void check_classes(const std::vector<std::string>& classes, const DitConfig& model, const fs::path& origin) {
  if (!model.names.empty() && classes != model.names)
    throw UserError(cat("the data has the classes ", join(classes), ", but ", origin.string(), " was trained on ",
                        join(model.names), ": their numbers would mean other things"));
}

void check_bytes(const Corpus& data, const LlamaConfig& model, const fs::path& origin) {
  if (data.is_bytes() && model.vocabulary != 256)
    throw UserError(cat("the data is text, which is read as bytes, but ", origin.string(), " has a vocabulary of ",
                        model.vocabulary, " tokens: give .bin files of its tokens"));
}

namespace {

// The base of all layers when a run goes on: what it was told before.
TrainingState read_run(const fs::path& checkpoint, TrainConfig& config) {
  const TrainingState state = read_state(checkpoint);
  config = run_config(state, checkpoint);
  // The run may have been moved since. A checkpoint that was copied out of its run has none around it.
  if (checkpoint.parent_path().filename() == "checkpoints")
    config.run.folder = checkpoint.parent_path().parent_path().string();
  return state;
}

// What the settings in `table` that differ are and were: "data.validation is 0.1 and was 0.05".
std::string changes(const std::string& table, TrainConfig now, TrainConfig before) {
  std::vector<std::string> found;
  const Settings ours = settings_of(now), theirs = settings_of(before);
  for (size_t i = 0; i < ours.size(); ++i)
    if (ours[i].name.starts_with(table) && value_text(ours[i]) != value_text(theirs[i]))
      found.push_back(cat(ours[i].name, " is ", value_text(ours[i]), " and was ", value_text(theirs[i])));
  return join(found);
}

// A run goes on at the next of its examples, which these settings number.
void check_order(const TrainConfig& config, const TrainConfig& before, const fs::path& checkpoint) {
  for (const char* name : {"train.tokens", "train.seed"})
    if (const std::string change = changes(name, config, before); !change.empty())
      throw UserError(cat(change, ": it decides which data comes next, so it must stay when a run goes on; --from ",
                          checkpoint.string(), " starts a new run from these weights"));
}

void check_data(const TrainConfig& config, const TrainConfig& before, const TrainingState& state,
                const std::string& fingerprint, const fs::path& checkpoint) {
  if (state.data.starts_with(fingerprint) || config.data.allow_changed) return;
  const std::string change = changes("data.", config, before);
  throw UserError(cat("the data in ", config.data.path, " is not what it was at the checkpoint ", checkpoint.string(),
                      change.empty() ? "" : cat(" (", change, ")"),
                      ": restore it, or go on with --set data.allow_changed=true"));
}

// What a run writes must not become its data.
void check_apart(const TrainConfig& config) {
  if (is_dit(config) && config.data.path == kShapes) return;
  if (fs::weakly_canonical(config.run.folder) == fs::weakly_canonical(config.data.path))
    throw UserError(cat("run.folder ", config.run.folder, " is data.path too: what is written would become data; ",
                        "give run.folder a folder of its own, which may lie in data.path"));
}

// A preset given beside a model that is there must be the model's own.
void check_preset(const TrainConfig& config, const ModelConfig& held, const fs::path& origin) {
  TrainConfig bare;
  bare.model.preset = config.model.preset;
  const Dimensions preset = dimensions(model_config(bare)), there = dimensions(held);
  if (is_dit(config) != std::holds_alternative<DitConfig>(held) || preset.dim != there.dim ||
      preset.layers != there.layers || preset.heads != there.heads)
    throw UserError(cat("model.preset ", config.model.preset, " is not what ", origin.string(),
                        " has: leave it out, the shape comes from there"));
}

// Opens the data, and lets it say what a new model leaves open: its vocabulary or classes. Returns what identifies the
// training data.
std::string open_source(Job& job) {
  const fs::path& origin = job.checkpoint.empty() ? job.from : job.checkpoint;
  const bool new_model = origin.empty();
  const TrainConfig& config = job.config;
  if (auto* model = std::get_if<DitConfig>(&job.model)) {
    const auto pictures = open_pictures(pictures_options(config, *model));
    const auto held_out = config.data.validation_path.empty()
                              ? nullptr
                              : open_pictures(pictures_options(config, *model, /*held_out=*/true));
    const auto classes = static_cast<int64_t>(pictures->classes().size());
    if (new_model && config.model.classes < 0) model->classes = classes > 1 ? classes : 0;
    check_config(config, job.model);
    check_classes(pictures->classes(), *model, origin);
    if (model->classes > 0) model->names = pictures->classes();
    model->guided = (!new_model && model->guided) || config.data.class_dropout > 0;
    job.source =
        std::make_shared<const PictureSource>(pictures, held_out, *model, picture_source_options(config, *model));
    return job.source->fingerprint();
  }
  auto& model = std::get<LlamaConfig>(job.model);
  const Corpora data = open_data(corpus_options(config, model.vocabulary));
  const bool bytes = data.training.is_bytes();
  if (new_model && config.model.vocabulary == 0 && bytes) model.vocabulary = 256;
  check_config(config, job.model);
  if (bytes && model.vocabulary < 256)
    throw UserError(
        cat("model.vocabulary ", model.vocabulary, " cannot hold bytes: give 256 or more, or leave it out"));
  if (bytes && config.data.end_token >= 0)
    throw UserError("data.end_token is for token files; a document of text ends by itself: leave it out");
  if (!job.from.empty()) check_bytes(data.training, model, origin);
  job.source = job.tokens = std::make_shared<const TokenSource>(data, source_options(config));
  return data.training.fingerprint();
}

}  // namespace

Job resolve(const TrainFlags& flags) {
  TrainConfig config;
  const Settings settings = settings_of(config);
  fs::path checkpoint;
  TrainingState state;
  if (!flags.resume.empty()) {
    if (!flags.config.empty() || !flags.from.empty())
      throw UserError(
          "--resume goes on with the run's own configuration and weights: leave out the config file and --from");
    checkpoint = fs::canonical(find_checkpoint(flags.resume));
    state = read_run(checkpoint, config);
  }
  const fs::path from = flags.from.empty() ? "" : model_folder(flags.from);
  const fs::path origin = !checkpoint.empty() ? checkpoint : from;
  ModelConfig held;
  if (!origin.empty()) {
    held = read_config(origin);
    set_model(config, held);
  }
  const TrainConfig before = config;
  if (!flags.config.empty()) read_toml(settings, flags.config);
  for (const std::string& set : flags.sets) set_value(settings, set);
  if (config.data.path.empty())
    throw UserError(cat("there is nothing to train on: give --set data.path=<",
                        is_dit(config) ? "folder of pictures, or the word shapes" : "text file, folder or .bin",
                        ">, or a config file"));
  if (!origin.empty() && config.model.preset != before.model.preset) check_preset(config, held, origin);

  Job job{config, {}, {}, {}, checkpoint, from, state.step};
  job.model = origin.empty() ? model_config(config)
                             : changed_model(config, held, origin.string(), /*start=*/checkpoint.empty());
  settle(job.config, job.model);
  check_apart(job.config);
  const std::string fingerprint = open_source(job);
  if (!checkpoint.empty()) {
    check_order(job.config, before, checkpoint);
    check_data(job.config, before, state, fingerprint, checkpoint);
  }
  job.config.data.allow_changed = false;  // it was for this start only
  set_model(job.config, job.model);       // so that what is saved is what is trained
  return job;
}

namespace {

// A folder and a file are tried and gone again, since rights alone do not tell.
void check_folder(const fs::path& folder) {
  fs::path there = fs::weakly_canonical(folder);
  while (!fs::exists(there) && there.has_relative_path()) there = there.parent_path();
  std::string trial = (there / ".startrail-XXXXXX").string();
  if (!mkdtemp(trial.data()))
    throw UserError(
        cat("run.folder ", folder.string(), " cannot be written: ", there.string(), ": ", std::strerror(errno)));
  fs::remove(trial);
}

void check_profile(const fs::path& file, const fs::path& run) {
  if (file.empty()) return;
  const fs::path folder = fs::weakly_canonical(file).parent_path();
  if (folder != fs::weakly_canonical(run)) check_writes(file, "--profile");  // that one is made when the run starts
}

}  // namespace

void check_start(const TrainFlags& flags, const Job& job) {
  const TrainConfig& config = job.config;
  check_memory(config, job.model, available_memory());
  const bool own = job.checkpoint.parent_path() == fs::weakly_canonical(config.run.folder) / "checkpoints";
  if (has_checkpoint(config.run.folder) && !own)
    throw UserError(cat(config.run.folder, " already holds a run",
                        job.checkpoint.empty() ? cat(": go on with --resume ", config.run.folder, ", or ")
                                               : cat(", and ", job.checkpoint.string(), " is not of it: "),
                        "set run.folder to another folder"));
  if (job.step >= config.train.steps)
    throw UserError(cat("the checkpoint is at step ", job.step, " and train.steps is ", config.train.steps,
                        ": give more with --set train.steps=N"));
  check_folder(config.run.folder);
  check_profile(flags.profile, config.run.folder);
  // An empty shard of the weights: names and shapes are compared, nothing is read.
  if (!job.from.empty()) read_shard(open_weights(job.from), *make_model(job.model), {});
  if (flags.dry_run && !job.checkpoint.empty()) verify_checkpoint(job.checkpoint);  // otherwise the ranks do it
}

}  // namespace startrail::cli

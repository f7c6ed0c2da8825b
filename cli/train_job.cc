#include "cli/train_plan.h"

#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fstream>

#include "cli/command.h"
#include "startrail/base/error.h"
#include "startrail/train/estimate.h"
#include "startrail/train/weights.h"

namespace startrail::cli {

namespace fs = std::filesystem;

TrainConfig run_config(const TrainingState& state, const fs::path& checkpoint) {
  TrainConfig config;
  read_toml_text(settings_of(config), state.settings, (checkpoint / "training.json").string());
  return config;
}

void check_classes(const Source& source, const TrainingState& state, const fs::path& origin) {
  if (!state.classes.empty() && source.classes() != state.classes)
    throw UserError(cat("the data has the classes ", join(source.classes()), ", but ", origin.string(),
                        " was trained on ", join(state.classes), ": their numbers would mean other things"));
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
std::string open_source(Plan& plan, bool new_model) {
  const TrainConfig& config = plan.config;
  if (auto* model = std::get_if<DitConfig>(&plan.model)) {
    const auto pictures = open_pictures(pictures_options(config, *model));
    const auto held_out = config.data.validation_path.empty()
                              ? nullptr
                              : open_pictures(pictures_options(config, *model, /*held_out=*/true));
    const auto classes = static_cast<int64_t>(pictures->classes().size());
    if (new_model && config.model.classes < 0) model->classes = classes > 1 ? classes : 0;
    check_config(config, plan.model);
    plan.source =
        std::make_shared<const PictureSource>(pictures, held_out, *model, picture_source_options(config, *model));
    return plan.source->fingerprint();
  }
  auto& model = std::get<LlamaConfig>(plan.model);
  const Corpora data = open_data(corpus_options(config, model.vocabulary));
  if (new_model && config.model.vocabulary == 0 && data.training.is_bytes()) model.vocabulary = 256;
  check_config(config, plan.model);
  plan.source = plan.tokens = std::make_shared<const TokenSource>(data, source_options(config));
  return data.training.fingerprint();
}

}  // namespace

Plan resolve(const TrainFlags& flags) {
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
  const fs::path origin = !checkpoint.empty() ? checkpoint : fs::path(flags.from);
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

  Plan plan{config, {}, {}, {}, checkpoint, state.step};
  plan.model = origin.empty() ? model_config(config)
                              : changed_model(config, held, origin.string(), /*start=*/checkpoint.empty());
  settle(plan.config, plan.model);
  check_apart(plan.config);
  const std::string fingerprint = open_source(plan, origin.empty());
  if (!flags.from.empty() && fs::exists(origin / "training.json"))
    check_classes(*plan.source, read_state(origin), origin);
  if (!checkpoint.empty()) {
    check_order(plan.config, before, checkpoint);
    check_data(plan.config, before, state, fingerprint, checkpoint);
  }
  plan.config.data.allow_changed = false;  // it was for this start only
  set_model(plan.config, plan.model);      // so that what is saved is what is trained
  return plan;
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

void check_start(const TrainFlags& flags, const Plan& plan) {
  const TrainConfig& config = plan.config;
  check_memory(config, plan.model, available_memory());
  const bool own = plan.checkpoint.parent_path() == fs::weakly_canonical(config.run.folder) / "checkpoints";
  if (has_checkpoint(config.run.folder) && !own)
    throw UserError(cat(config.run.folder, " already holds a run",
                        plan.checkpoint.empty() ? cat(": go on with --resume ", config.run.folder, ", or ")
                                                : cat(", and ", plan.checkpoint.string(), " is not of it: "),
                        "set run.folder to another folder"));
  if (plan.step >= config.train.steps)
    throw UserError(cat("the checkpoint is at step ", plan.step, " and train.steps is ", config.train.steps,
                        ": give more with --set train.steps=N"));
  check_folder(config.run.folder);
  check_profile(flags.profile, config.run.folder);
  // An empty shard of the weights: names and shapes are compared, nothing is read.
  if (!flags.from.empty()) read_shard(open_weights(flags.from), *make_model(plan.model), {});
  if (flags.dry_run && !plan.checkpoint.empty()) verify_checkpoint(plan.checkpoint);  // otherwise the ranks do it
}

}  // namespace startrail::cli

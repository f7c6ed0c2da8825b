#include "startrail/train/loop/job.h"

#include <algorithm>
#include <cerrno>
#include <cstdlib>

#include "startrail/base/error.h"
#include "startrail/base/file.h"
#include "startrail/plan/make.h"
#include "startrail/plan/text.h"
#include "startrail/train/data/tokenize/end_token.h"
#include "startrail/train/data/tokens/token_folder.h"
#include "startrail/train/loop/estimate.h"
#include "startrail/train/loop/tokenize_data.h"
#include "startrail/train/model/weights.h"

namespace startrail {

namespace fs = std::filesystem;

TrainConfig run_config(const TrainingState& state, const fs::path& checkpoint) {
  TrainConfig config;
  read_toml_text(settings_of(config), state.settings, (checkpoint / kStateFile).string());
  return config;
}

PictureSets open_picture_sets(const TrainConfig& config, const DitConfig& model, const Listing& listing) {
  PictureSets sets{open_pictures(pictures_options(config, model, false, listing)), nullptr};
  if (!config.data.validation_path.empty())
    sets.held_out = open_pictures(pictures_options(config, model, true, listing));
  return sets;
}

Listing listing_of(World* processes) {
  if (!processes) return {};
  return {[processes](const std::function<std::string()>& make) { return processes->once(make); }, processes->looks()};
}

void check_classes(const std::vector<std::string>& classes, const DitConfig& model, const fs::path& origin) {
  if (!model.names.empty() && classes != model.names)
    throw UserError(cat("the data has the classes ", join(classes), ", but ", origin.string(), " was trained on ",
                        join(model.names), ": their numbers would mean other things"));
}

void check_bytes(const Corpus& data, const LlamaConfig& model, const fs::path& origin) {
  if (data.is_bytes() && model.vocabulary != 256)
    throw UserError(cat("the data is text, which is read as bytes, but ", origin.string(), " has a vocabulary of ",
                        model.vocabulary, " tokens: give its tokens, which `startrail tokenize` makes of text"));
}

namespace {

bool same_tokenizer(const fs::path& ours, const fs::path& theirs) {
  return !fs::exists(ours) || !fs::exists(theirs) || checksum(ours) == checksum(theirs);
}

// Before text is tokenized for a model that has a tokenizer.
void check_given_tokenizer(const std::string& tokenizer, const fs::path& origin) {
  if (!same_tokenizer(tokenizer_file(tokenizer), origin / kTokenizerFile))
    throw UserError(cat("--tokenizer ", tokenizer, " is another tokenizer than that of ", origin.string(),
                        ": give --tokenizer ", origin.string()));
}

}  // namespace

void check_tokenizer(const Corpus& data, const fs::path& origin) {
  const fs::path ours = data.folder() / kTokenizerFile;
  if (!data.folder().empty() && !same_tokenizer(ours, origin / kTokenizerFile))
    throw UserError(cat("the tokens in ", data.folder().string(), " were made with another tokenizer than that of ",
                        origin.string(), ": tokenize with --tokenizer ", origin.string(),
                        " or, if it is the same written differently, copy its tokenizer.json to ", ours.string()));
}

namespace {

// A run and what is set on top of it: it goes on at the next of its examples, of the same data.
struct Continued {
  const TrainConfig& before;
  const TrainingState& state;
  const fs::path& checkpoint;
  const Overrides& overrides;

  // These settings number the examples.
  void check_order(const TrainConfig& now) const {
    for (const char* name : {"train.tokens", "train.seed"})
      if (const std::string change = changes(name, overrides, now, before); !change.empty())
        throw UserError(cat(change, ": it decides which data comes next, so it must stay when a run goes on; --from ",
                            checkpoint.string(), " starts a new run from these weights"));
  }

  void check_data(const TrainConfig& now, const std::string& fingerprint, const std::string& split) const {
    if (state.data.starts_with(fingerprint) || now.data.allow_changed) return;
    // Checkpoints of earlier versions, which chose what to hold out by other rules, do not say how it was done.
    if ((split == "files" || split == "documents") && std::count(state.data.begin(), state.data.end(), ' ') == 1)
      throw UserError(cat("the checkpoint ", checkpoint.string(), " is of a version that held out other ", split,
                          " for validation, or the data in ", now.data.path, " has changed: go on with --set ",
                          "data.allow_changed=true, and take validation losses as too low, since some of what is held ",
                          "out now was trained on"));
    const std::string change = changes("data.", overrides, now, before);
    throw UserError(cat("the data in ", now.data.path, " is not what it was at the checkpoint ", checkpoint.string(),
                        change.empty() ? "" : cat(" (", change, ")"),
                        ": restore it, or go on with --set data.allow_changed=true"));
  }
};

// Of sequences longer than those the model has seen, without anything that stretches its positions; "" if it is so.
std::string length_warning(const Base& base, const TrainConfig& config, const ModelConfig& model) {
  const auto* before = std::get_if<LlamaConfig>(&*base.model);
  if (!before || std::get<LlamaConfig>(model).rope.type != "default" || config.train.tokens <= before->max_tokens)
    return "";
  return cat("train.tokens ", config.train.tokens, " goes past the ", before->max_tokens, " positions of ", base.where,
             " (max_position_embeddings): set model.rope_scaling to stretch them, or expect a high loss at first");
}

// What a run writes must not become its data.
void check_apart(const TrainConfig& config) {
  if (is_dit(config) && config.data.path == kShapes) return;
  if (fs::weakly_canonical(config.run.folder) == fs::weakly_canonical(config.data.path))
    throw UserError(cat("run.folder ", config.run.folder, " is data.path too: what is written would become data; ",
                        "give run.folder a folder of its own, which may lie in data.path"));
}

// What the data is, and what it says of the model: its vocabulary or classes where a new model leaves them open.
struct Opened {
  ModelConfig model;
  std::shared_ptr<const Source> source;
  std::shared_ptr<const TokenSource> tokens;
  std::string fingerprint;  // of the training data
  std::string split = {};   // how validation data was held out of it, of a GPT
};

// `origin` is the folder that the model is from, "" for a new one.
Opened open_source(const TrainConfig& config, DitConfig model, const fs::path& origin, const Listing& listing) {
  const PictureSets sets = open_picture_sets(config, model, listing);
  const std::vector<std::string>& classes = sets.training->classes();
  const bool is_new = origin.empty();
  if (is_new && config.model.classes < 0) model.classes = classes.size() > 1 ? static_cast<int64_t>(classes.size()) : 0;
  check_config(config, model);
  check_classes(classes, model, origin);
  if (model.classes > 0) model.names = classes;
  model.guided = (!is_new && model.guided) || config.data.class_dropout > 0;
  const auto source =
      std::make_shared<const PictureSource>(sets.training, sets.held_out, model, picture_source_options(config, model));
  return {model, source, nullptr, source->fingerprint()};
}

Opened open_source(const TrainConfig& config, LlamaConfig model, const fs::path& origin, bool starts,
                   const Listing& listing) {
  const Corpora data = open_data(corpus_options(config, model.vocabulary, listing));
  const bool bytes = data.training.is_bytes();
  if (origin.empty() && config.model.vocabulary == 0) model.vocabulary = data.training.vocabulary();
  check_config(config, model);
  if (bytes && model.vocabulary < 256)
    throw UserError(
        cat("model.vocabulary ", model.vocabulary, " cannot hold bytes: give 256 or more, or leave it out"));
  if (bytes && config.data.end_token >= 0)
    throw UserError("data.end_token is for token files; a document of text ends by itself: leave it out");
  if (starts) check_bytes(data.training, model, origin);
  if (starts) check_tokenizer(data.training, origin);
  const auto source = std::make_shared<const TokenSource>(data, source_options(config));
  return {model, source, source, data.training.fingerprint(), data.split};
}

Base read_base(const fs::path& checkpoint, const TrainingState& state, const fs::path& from) {
  if (checkpoint.empty() && from.empty()) return {};
  if (checkpoint.empty()) return {.model = read_config(from), .where = from.string()};
  Base base{.config = run_config(state, checkpoint),
            .model = read_config(checkpoint),
            .where = checkpoint.string(),
            .resumes = true};
  // The run may have been moved since. A checkpoint that was copied out of its run has none around it.
  if (checkpoint.parent_path().filename() == kCheckpointFolder)
    base.config.run.folder = checkpoint.parent_path().parent_path().string();
  return base;
}

Overrides read_overrides(const TrainRequest& request) {
  TrainConfig defaults;
  const Settings settings = settings_of(defaults);
  Overrides overrides;
  if (!request.config.empty()) overrides = toml_overrides(settings, request.config);
  for (const std::string& set : request.sets) add_override(overrides, settings, set);
  return overrides;
}

}  // namespace

namespace {

// As many ranks as processes, which is not for the settings to say; but a run that is told of others is a mistake.
void set_ranks(TrainConfig& config, const Overrides& overrides, int processes) {
  if (overrides.contains("parallel.ranks") && config.parallel.ranks != processes)
    throw UserError(cat("parallel.ranks is ", config.parallel.ranks, ", but ", processes,
                        " processes were started: ", "leave it out, or start as many"));
  config.parallel.ranks = processes;
}

// Of a job that is started again: the run's folder, when it holds a checkpoint by now. Nothing when `from` is of it: to
// go back to that one was asked for.
std::string newest_of(const TrainConfig& config, const fs::path& from) {
  const bool own = from.parent_path() == fs::weakly_canonical(config.run.folder) / kCheckpointFolder;
  return !own && has_checkpoint(config.run.folder) ? fs::absolute(config.run.folder).string() : "";
}

// Of a job that is started again, what it goes on from: its run when the checkpoint that it began with is one of those
// that were removed for newer ones since.
fs::path still_there(const fs::path& resume) {
  const fs::path folder = resume.parent_path();
  return fs::exists(resume) || folder.filename() != kCheckpointFolder ? resume : folder.parent_path();
}

// What is asked for, going on from `resume`, a run or a checkpoint, if it is not "".
TrainJob job_of(const TrainRequest& request, const std::string& resume, World* processes) {
  const auto once = [&](const std::function<std::string()>& make) {
    return processes ? processes->once(make) : make();
  };
  std::vector<std::string> warnings;
  const fs::path checkpoint = resume.empty() ? "" : once([&] {
    const WholeCheckpoint whole = find_whole_checkpoint(request.restarted ? still_there(resume) : fs::path(resume));
    if (!whole.warning.empty()) warnings.push_back(whole.warning);
    return fs::canonical(whole.path).string();
  });
  const bool starts = resume.empty() && !request.from.empty();
  const fs::path from = starts ? once([&] { return model_folder(request.from).string(); }) : "";
  const TrainingState state = checkpoint.empty() ? TrainingState{} : read_state(checkpoint);
  const Base base = read_base(checkpoint, state, from);
  const Overrides overrides = read_overrides(request);
  auto [config, model] = resolve(base, overrides);
  if (processes) set_ranks(config, overrides, processes->size());
  const bool automatic = request.resume == kResumeAuto;
  if ((resume.empty() && automatic) || request.restarted) {
    const std::string newest = once([&, &config = config] { return newest_of(config, checkpoint); });
    if (!newest.empty() && newest != resume)
      return job_of(
          automatic
              ? request
              : TrainRequest{.sets = request.sets, .tokenizer = request.tokenizer, .tokenizing = request.tokenizing},
          newest, processes);
  }
  if (config.data.path.empty())
    throw UserError(cat("there is nothing to train on: give --set data.path=<",
                        is_dit(config) ? "folder of pictures, or the word shapes" : "text file, folder or .bin",
                        ">, or a config file"));
  check_apart(config);
  if (!request.tokenizer.empty()) {
    once([&, &config = config] {
      if (starts) check_given_tokenizer(request.tokenizer, from);
      tokenize_data(config, request.tokenizer, request.tokenizing);
      return std::string();
    });
    config = with_tokens(config);
  }
  const auto* dit = std::get_if<DitConfig>(&model);
  const Listing listing = listing_of(processes);
  Opened data = dit ? open_source(config, *dit, base.where, listing)
                    : open_source(config, std::get<LlamaConfig>(model), base.where, !from.empty(), listing);
  if (base.resumes) {
    const Continued run{base.config, state, checkpoint, overrides};
    run.check_order(config);
    run.check_data(config, data.fingerprint, data.split);
  }
  config.data.allow_changed = false;  // it was for this start only
  const std::string length = base.model ? length_warning(base, config, data.model) : "";
  if (!length.empty()) warnings.push_back(length);
  // Saved is what is trained.
  return {with_model(config, data.model), data.model, data.source, data.tokens, checkpoint, from, state.step, warnings};
}

}  // namespace

TrainJob make_job(const TrainRequest& request, World* processes) {
  if (request.resume.empty() || request.resume == kResumeAuto) return job_of(request, "", processes);
  if (!request.config.empty() || !request.from.empty())
    throw UserError(
        "--resume goes on with the run's own configuration and weights: leave out the config file and --from, or give "
        "--resume auto");
  if (!request.tokenizer.empty())
    throw UserError("--resume goes on with the run's own tokens: leave out --tokenizer, or give --resume auto");
  return job_of(request, request.resume, processes);
}

std::map<std::string, std::string> job_facts(const TrainJob& job) {
  std::map<std::string, std::string> facts;
  TrainConfig config = job.config;
  for (const Setting& setting : settings_of(config))
    if (setting.name != "parallel.threads") facts[setting.name] = value_text(setting);
  const AttentionOptions options = attention_options(config, job.model);
  std::string plan;
  for (Pass pass : kPasses)
    for (const Step& step : make_steps(options.grid, pass, 0)) plan += to_text(step) + "\n";
  facts["data"] = job.source->fingerprint();
  facts["the plan"] = checksum(plan.data(), plan.size());
  facts["the step to go on from"] = cat(job.step);
  for (const fs::path& folder : {job.from, job.checkpoint})
    if (!folder.empty()) facts["the weights to start from"] = weights_fingerprint(folder);
  return facts;
}

Training make_training(const TrainJob& job) {
  const auto companions = [job] {
    const Corpus& data = job.tokens->data().training;
    return make_companions(job.checkpoint.empty() ? job.from : job.checkpoint, data.folder(), data.end_token());
  };
  return {.config = job.config,
          .make_model = [model = job.model] { return make_model(model); },
          .attention = attention_options(job.config, job.model),
          .source = job.source,
          .weights = job.from,
          .checkpoint = job.checkpoint,
          .companions = job.tokens ? std::function<Companions()>(companions) : nullptr};
}

namespace {

// A folder and a file are tried and gone again, since rights alone do not tell.
void check_folder(const fs::path& folder) {
  fs::path there = fs::weakly_canonical(folder);
  while (!fs::exists(there) && there.has_relative_path()) there = there.parent_path();
  std::string trial = (there / ".startrail-XXXXXX").string();
  if (!mkdtemp(trial.data()))
    throw_file_error(cat("run.folder ", folder.string()), cat("cannot be written: ", there.string()).c_str(), errno);
  fs::remove(trial);
}

void check_profile(const fs::path& file, const fs::path& run) {
  if (file.empty()) return;
  const fs::path folder = fs::weakly_canonical(file).parent_path();
  if (folder != fs::weakly_canonical(run)) check_writable(file, "--profile");  // that one is made when the run starts
}

}  // namespace

void check_start(const TrainJob& job, World& world, const fs::path& profile) {
  const TrainConfig& config = job.config;
  check_memory(config, job.model,
               {available_memory(), world.ranks_here(), world.threads_each(static_cast<int>(config.parallel.threads))});
  world.once([&] {
    const bool own = job.checkpoint.parent_path() == fs::weakly_canonical(config.run.folder) / kCheckpointFolder;
    if (has_checkpoint(config.run.folder) && !own)
      throw UserError(cat(config.run.folder, " already holds a run",
                          job.checkpoint.empty() ? cat(": go on with --resume ", config.run.folder, ", or ")
                                                 : cat(", and ", job.checkpoint.string(), " is not of it: "),
                          "set run.folder to another folder"));
    if (job.step >= config.train.steps)
      throw UserError(cat("the checkpoint is at step ", job.step, " and train.steps is ", config.train.steps,
                          ": give more with --set train.steps=N"));
    check_folder(config.run.folder);
    check_profile(profile, config.run.folder);
    return "";
  });
  // An empty shard of the weights: names and shapes are compared, nothing is read.
  if (!job.from.empty()) read_shard(open_weights(job.from), *make_model(job.model), {});
}

}  // namespace startrail

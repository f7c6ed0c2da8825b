// A training run before it starts: settings, model and data, checked as far as can be before anything runs.
#pragma once

#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "startrail/train/data/tokenize/tokenize.h"
#include "startrail/train/loop/resolve.h"
#include "startrail/train/loop/trainer.h"

namespace startrail {

constexpr const char* kResumeAuto = "auto";

// What a user asks for. `config` is a TOML file; `from` a folder of weights to start from, `resume` a run or a
// checkpoint to go on with, as model_folder and find_whole_checkpoint take them; each may be "". With kResumeAuto the
// run that the settings name goes on if it has a checkpoint, with what the settings say by now, and else starts. `sets`
// override settings, "train.tokens=8192".
struct TrainRequest {
  std::string config = {}, from = {}, resume = {};
  std::vector<std::string> sets = {};
  // Text is tokenized with it first, as tokenize_data() does; "" for data as it is.
  std::string tokenizer = {};
  TokenizeObserver tokenizing = {};
  // A launcher starts the same job again: it goes on from the newest checkpoint in its run's folder, if there is one.
  bool restarted = false;
};

// What it comes to.
struct TrainJob {
  TrainConfig config;
  ModelConfig model;
  std::shared_ptr<const Source> source;
  std::shared_ptr<const TokenSource> tokens;  // the same source, of a GPT
  std::filesystem::path checkpoint;           // to go on from
  std::filesystem::path from;                 // the folder of weights to start from, if given
  int64_t step = 0;                           // done already
  std::vector<std::string> warnings = {};     // what the user should know; of processes rank 0 has all
};

// Resolves the settings and opens the data. UserError for what is wrong with either, and for a run that would not go on
// as it was. Where ranks are processes, `processes` is their world: there are as many as it has, and rank 0 looks at
// folders for all.
TrainJob make_job(const TrainRequest& request, World* processes = nullptr);

// What must be the same on every process, by name.
std::map<std::string, std::string> job_facts(const TrainJob& job);

// UserError for what would fail later: memory, folders, weights; `profile` as in Training.
void check_start(const TrainJob& job, World& world, const std::filesystem::path& profile = {});

Training make_training(const TrainJob& job);

// What the run that wrote this checkpoint was told.
TrainConfig run_config(const TrainingState& state, const std::filesystem::path& checkpoint);

// The pictures for training, and those held out, or null when they are a share of the first.
struct PictureSets {
  std::shared_ptr<const Pictures> training, held_out;
};
PictureSets open_picture_sets(const TrainConfig& config, const DitConfig& model, const Listing& listing = {});

// How the processes of a world find files; null: there is but this one.
Listing listing_of(World* processes);

// UserError when the data's classes are not those that the model in `origin` was trained on, as far as it says: weights
// know them by their numbers only.
void check_classes(const std::vector<std::string>& classes, const DitConfig& model,
                   const std::filesystem::path& origin);

// UserError when text is given to a model of tokens.
void check_bytes(const Corpus& data, const LlamaConfig& model, const std::filesystem::path& origin);

// UserError when the tokenizer.json beside tokens is not the one beside the model in `origin`, where both are there.
void check_tokenizer(const Corpus& data, const std::filesystem::path& origin);

}  // namespace startrail

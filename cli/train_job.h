// What a `train` command line comes to: settings, model and data, checked as far as can be before anything runs.
#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "startrail/train/loop/trainer.h"

namespace startrail::cli {

struct TrainFlags {
  std::string config, from, resume, profile;
  std::vector<std::string> sets;
  bool dry_run = false, help_config = false, json = false;
};

// What a command line comes to.
struct Job {
  TrainConfig config;
  ModelConfig model;
  std::shared_ptr<const Source> source;
  std::shared_ptr<const TokenSource> tokens;  // the same source, of a GPT
  std::filesystem::path checkpoint;           // to go on from
  std::filesystem::path from;                 // the folder of weights to start from, if given
  int64_t step = 0;                           // done already
};

// The folder of weights that a path means: a run's newest checkpoint, a checkpoint, or a folder as Hugging Face has
// them. A checkpoint is compared with its checksums.
std::filesystem::path model_folder(const std::string& path);

// What the run that wrote this checkpoint was told.
TrainConfig run_config(const TrainingState& state, const std::filesystem::path& checkpoint);

// UserError when the data's classes are not those that the model in `origin` was trained on, as far as it says: weights
// know them by their numbers only.
void check_classes(const std::vector<std::string>& classes, const DitConfig& model,
                   const std::filesystem::path& origin);

// UserError when text is given to a model of tokens.
void check_bytes(const Corpus& data, const LlamaConfig& model, const std::filesystem::path& origin);

// Reads every layer: the defaults, a checkpoint's or folder's and a file's settings, --set. Opens the data.
Job resolve(const TrainFlags& flags);

// UserError for what would fail later: memory, folders, weights.
void check_start(const TrainFlags& flags, const Job& job);

}  // namespace startrail::cli

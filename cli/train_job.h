// What a `train` command line comes to: settings, model and data, checked as far as can be before anything runs.
#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "startrail/train/trainer.h"

namespace startrail::cli {

struct TrainFlags {
  std::string config, from, resume, profile;
  std::vector<std::string> sets;
  bool dry_run = false, help_config = false, json = false;
};

// What a command line comes to.
struct Plan {
  TrainConfig config;
  ModelConfig model;
  std::shared_ptr<const Source> source;
  std::shared_ptr<const TokenSource> tokens;  // the same source, of a GPT
  std::filesystem::path checkpoint;
  int64_t step = 0;  // done already
};

// What the run that wrote this checkpoint was told.
TrainConfig run_config(const TrainingState& state, const std::filesystem::path& checkpoint);

// UserError when the data's classes are not those that the run in `origin` was trained on: weights know them by their
// numbers only.
void check_classes(const Source& source, const TrainingState& state, const std::filesystem::path& origin);

// Reads every layer: the defaults, a checkpoint's or folder's and a file's settings, --set. Opens the data.
Plan resolve(const TrainFlags& flags);

// UserError for what would fail later: memory, folders, weights.
void check_start(const TrainFlags& flags, const Plan& plan);

}  // namespace startrail::cli

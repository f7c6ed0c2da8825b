// The training loop, for any model and source: data parallel x sequence parallel, accumulation, sharded AdamW,
// validation, checkpoints, metrics. Every rank runs the same loop; rank 0 tells the observer.
#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <optional>

#include "startrail/run/comm/world.h"
#include "startrail/train/data/source.h"
#include "startrail/train/loop/checkpoint.h"
#include "startrail/train/loop/config.h"
#include "startrail/train/loop/metrics.h"

namespace startrail {

// Called by rank 0, from its thread.
struct Observer {
  std::function<void(const StepReport&)> on_step;
  std::function<void(const std::filesystem::path&)> on_checkpoint;
  std::function<bool()> stop;  // asked after every step, in every process; true saves and ends the run
};

struct Training {
  TrainConfig config = {};
  std::function<std::unique_ptr<Model>()> make_model = {};  // one for each rank
  AttentionOptions attention = {};                          // how the ranks of a sequence share it
  std::shared_ptr<const Source> source = {};
  std::filesystem::path weights = {};     // start from the weights in this folder, or
  std::filesystem::path checkpoint = {};  // go on from this checkpoint; neither: from random weights
  std::filesystem::path profile = {};     // write a trace of a few steps here
  bool save = true;                       // checkpoints and metrics into config.run.folder
  bool tensorboard = false;               // the metrics also as TensorBoard reads them
  int64_t estimated_bytes = 0;            // of a rank, for the record; 0: not known
  Observer observer = {};
  int asks = 0;                                        // the rank of this process that asks observer.stop
  std::function<void(const std::string&)> doing = {};  // told what every rank is at: "step 12"
  std::function<Companions()> companions = {};  // asked by rank 0 for what its checkpoints hold beside the weights
};

struct TrainingResult {
  StepReport last;
  std::optional<double> validation;
  std::vector<double> losses;  // of the steps taken
  double seconds = 0;          // of them
  int64_t tokens = 0;          // trained on by them
  int64_t static_bytes = 0;    // of peak_bytes, what does not grow with the sequence: weights, gradients, optimizer
  int64_t bad_steps = 0;       // of them, those that changed nothing, as loss or gradient was not finite
  bool stopped = false;        // by the observer, before the last step
  std::shared_ptr<RankTrace> trace;  // this rank's, when a profile was asked for
  std::vector<StepReport> traced;    // the steps in it
};

// One rank's part, on any group.
TrainingResult train_rank(const Training& training, const std::shared_ptr<Group>& world);

// All ranks of a world, which are as many as the configuration says. Returns the result of the first that lives in this
// process; all have the same losses.
TrainingResult train(const Training& training, World& world);
// As threads of this process.
TrainingResult train(const Training& training);

}  // namespace startrail

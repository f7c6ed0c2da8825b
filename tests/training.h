// Small training runs, shared by the tests that need one.
#pragma once

#include "startrail/base/testing.h"
#include "startrail/train/loop/trainer.h"

namespace startrail {

// A model of 2 layers and dim 64 on 256 tokens of made-up text in a few files under `folder`, float32, one rank.
TrainConfig small_config(const TempFolder& folder, int lines = 400, int files = 5);

// Trains without writing anything unless `save`, on two threads. `stop_after` steps rank 0 asks for the end.
TrainingResult run_training(const TrainConfig& config, const std::filesystem::path& checkpoint = {}, bool save = false,
                            int stop_after = 0,
                            const std::function<void(const std::filesystem::path&)>& on_checkpoint = {});

// How a run is split; a grid is of ranks / data_parallel.
struct SplitRun {
  int ranks, data_parallel;
  const char* grid;
  bool recompute = true;
};
// Trains small_config() on one rank and so split: every loss is the same, and the model learns.
void expect_losses_of_one_rank(int steps, const std::vector<SplitRun>& splits);

// The same for a DiT of 2 layers and dim 64 on generated shapes, 64 tokens each.
TrainConfig small_dit_config();
TrainingResult run_dit_training(const TrainConfig& config, const std::filesystem::path& checkpoint = {});
void expect_dit_losses_of_one_rank(const char* objective, int steps, const std::vector<SplitRun>& splits);

// Starts the command again and again with a checkpoint after every step, kills it (SIGKILL) at a random moment `times`
// times, and checks each time that the newest checkpoint loads and that none that was complete is lost.
void kill_and_resume(int times, unsigned seed);

}  // namespace startrail

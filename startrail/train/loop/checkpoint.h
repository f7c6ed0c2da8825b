// Training state on disk: a folder `step-000100` that transformers can load as it is, with the optimizer's state, the
// running mean of the weights if there is one (ema.safetensors), a training.json and checksums. Every rank writes its
// own shard; a folder gets its name only when all of it is on disk.
#pragma once

#include <filesystem>
#include <string>

#include "startrail/train/loop/optimizer.h"
#include "startrail/train/model/companions.h"

namespace startrail {

struct TrainingState {
  int64_t step = 0;      // steps done
  int64_t examples = 0;  // training examples used
  int64_t updates = 0;   // steps that changed the weights
  double seconds = 0;    // spent training
  std::string data;      // the source's fingerprint
  std::string settings;  // the resolved configuration, as TOML
};

// Writes <run>/checkpoints/step-N, points <run>/checkpoints/latest at it, and then removes those of later steps, which
// a run that went back to an earlier one has given up, and all but the newest `keep` (0: keeps all). All ranks call it.
// ClusterError, with what the user can do, on a full disk: nothing of the new one is left then. `companions` are rank
// 0's.
void save_checkpoint(const std::filesystem::path& run, const TrainingState& state, const Model& model,
                     ShardedAdamW& optimizer, Group& world, int64_t keep, const Companions& companions = {});

// Removes what a save that was killed left in the run's folder. For who has the run's lock.
void clear_partial(const std::filesystem::path& run);

// The checkpoint that a path means: itself, or of a run's folder the complete one that `latest` names (without it, that
// of the highest step). UserError when there is none.
std::filesystem::path find_checkpoint(const std::filesystem::path& path);

// The folder of weights that a path means: a run's newest checkpoint, a checkpoint, or a folder as Hugging Face has
// them. A checkpoint is compared with its checksums; UserError as above.
std::filesystem::path model_folder(const std::filesystem::path& path);

// A checkpoint to go on from, compared with all its checksums.
struct WholeCheckpoint {
  std::filesystem::path path;
  std::string warning;  // what is wrong with those that were passed over for it
};
// Of a run's folder the one find_checkpoint gives or, where that is damaged, the newest that is whole. UserError for a
// checkpoint's own path that is damaged, naming the newest whole one of its run, and when none is whole.
WholeCheckpoint find_whole_checkpoint(const std::filesystem::path& path);

// Tells weights apart without reading them: a checkpoint's own checksums, or the files' names and sizes.
std::string weights_fingerprint(const std::filesystem::path& folder);

// True when the run's folder holds a checkpoint, damaged or not.
bool has_checkpoint(const std::filesystem::path& run);

// UserError for a folder that is no complete checkpoint.
TrainingState read_state(const std::filesystem::path& checkpoint);

// Compares checksums of every `of`-th part of the files from `first` on; UserError naming the damaged file.
void verify_checkpoint(const std::filesystem::path& checkpoint, int first = 0, int of = 1);

// Gives the optimizer its shard and everyone the weights, after verifying them. Works for any number of ranks,
// whatever number wrote it. All ranks call it.
void load_checkpoint(const std::filesystem::path& checkpoint, const Model& model, ShardedAdamW& optimizer,
                     Group& world);

}  // namespace startrail

// Everything a training run can be told: read from TOML, overridden by --set, saved with the run.
#pragma once

#include <optional>

#include "startrail/plan/choose.h"
#include "startrail/train/data/pictures/picture_source.h"
#include "startrail/train/data/tokens/token_source.h"
#include "startrail/train/loop/optimizer.h"
#include "startrail/train/loop/settings.h"
#include "startrail/train/model/kinds.h"

namespace startrail {

struct TrainConfig {
  struct {
    std::string preset = "tiny";
    int64_t vocabulary = 0, dim = 0, layers = 0, heads = 0, kv_heads = 0, head_dim = 0, hidden = 0;  // 0: the preset's
    std::string tied = "preset";
    std::string kind = "llama";
    double norm_eps = 1e-5;
    double rope_theta = 10000;
    std::string rope_scaling = "default";
    double rope_factor = 1;
    double rope_low_frequency = 1, rope_high_frequency = 4, rope_beta_fast = 32, rope_beta_slow = 1;
    int64_t rope_original_tokens = 0;
    // DiT only.
    int64_t channels = 0, classes = -1;
    int64_t frames = 0, height = 0, width = 0, patch_frames = 0, patch_height = 0, patch_width = 0;
    std::string positions = "preset", objective = "preset";
  } model;
  struct {
    std::string path;
    std::string validation_path;
    double validation = 0.05;
    int64_t end_token = -1;
    bool documents = false;
    bool allow_changed = false;
    // DiT only.
    std::string fit = "crop", on_error = "stop", times = "uniform";
    double scale = 1, class_dropout = 0.1;
    int64_t generated = 100000;
  } data;
  struct {
    int64_t tokens = 0, batch = 1, steps = 1000;
    std::string precision = "bfloat16";
    bool recompute = true;
    int64_t seed = 1;
    double learning_rate = 1e-3, floor = 0.1;
    std::string schedule = "cosine";
    int64_t warmup = 20;
    double weight_decay = 0.1, beta1 = 0.9, beta2 = 0.95, eps = 1e-8, clip = 1, ema = 0;
  } train;
  struct {
    int64_t ranks = 1, data_parallel = 1;
    std::string grid = "auto", layout = "auto", backward = "auto", partial = "float32", kernel = "auto";
    int64_t threads = 0, timeout_s = 30;
  } parallel;
  struct {
    int64_t every = 100, windows = 16;
  } validate;
  struct {
    std::string folder;
    int64_t save_every = 200, keep = 2;
    bool samples = true;
  } run;
};

// The settings there are, bound to `config`: the one list that reading, help and the saved file follow.
Settings settings_of(TrainConfig& config);

// What of a configuration is not as it is by default: names and values, as TOML writes them.
std::vector<std::pair<std::string, std::string>> changed_settings(const TrainConfig& config);

// Whether its preset is a DiT's; otherwise it is a GPT.
bool is_dit(const TrainConfig& config);

// The shape of a new model: the preset with what was set. UserError for one that cannot be.
ModelConfig model_config(const TrainConfig& config);

at::ScalarType compute_type(const TrainConfig& config);
int sequence_ranks(const TrainConfig& config);
// Threads in all, counted where 0 was given.
int thread_count(const TrainConfig& config);
// What a step sends for each attention.
Exchange exchange_of(const TrainConfig& config);
// How the ranks of a sequence share it. A grid that is left open is the one that sends the fewest bytes in a step.
AttentionOptions attention_options(const TrainConfig& config, const ModelConfig& model);
// How it was chosen, where it was left open.
std::optional<GridChoice> grid_choice(const TrainConfig& config, const ModelConfig& model);
AdamWOptions optimizer_options(const TrainConfig& config);
ScheduleOptions schedule_options(const TrainConfig& config);
CorpusOptions corpus_options(const TrainConfig& config, int64_t vocabulary, const Listing& listing = {});
TokenSourceOptions source_options(const TrainConfig& config);
// Of data.path, or of data.validation_path: generated pictures are others then.
PicturesOptions pictures_options(const TrainConfig& config, const DitConfig& model, bool held_out = false,
                                 const Listing& listing = {});
PictureSourceOptions picture_source_options(const TrainConfig& config, const DitConfig& model);

// UserError for settings that this kind of model, or this kind of rotary positions, does not have.
void check_settings(const TrainConfig& config);

// Everything that can be checked without reading data: UserError otherwise.
void check_config(const TrainConfig& config, const ModelConfig& model);

// How the ranks of one sequence share it outside of training.
struct Sharing {
  int ranks = 1;
  std::string grid = "auto";
  int threads = 0;  // of all ranks together; 0: all cores
};
int thread_count(const Sharing& sharing);

// For sequences of `tokens`. UserError, naming --ranks or the grid, for what does not fit them or the model's heads.
AttentionOptions attention_options(const Sharing& sharing, const ModelConfig& model, int64_t tokens);

}  // namespace startrail

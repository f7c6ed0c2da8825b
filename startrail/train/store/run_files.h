// What training writes and how it is called: the one place that names the files of a run, a checkpoint and a model.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

namespace startrail {

// Of a run.
constexpr const char* kSettingsFile = "config.toml";
constexpr const char* kMetricsFile = "metrics.jsonl";
constexpr const char* kSkippedFile = "skipped.txt";  // what could not be used of the data
constexpr const char* kLockFile = ".lock";
constexpr const char* kCheckpointFolder = "checkpoints";
constexpr const char* kSampleFolder = "samples";  // what the model made, by step
constexpr const char* kLatest = "latest";         // in it: a link to the newest

// Of a checkpoint, beside those of a model.
constexpr const char* kStateFile = "training.json";
constexpr const char* kOptimizerFile = "optimizer.safetensors";
constexpr const char* kMeanFile = "ema.safetensors";  // the running mean of the weights

// Of a model, as Hugging Face calls them.
constexpr const char* kModelFile = "config.json";
constexpr const char* kWeightsFile = "model.safetensors";
constexpr const char* kDiffusersWeightsFile = "diffusion_pytorch_model.safetensors";

// "step-00000100": what belongs to a step, such as its checkpoint, is called so; and the step of such a name, or -1: a
// copy called step-5-good is the user's own.
std::string step_name(int64_t step);
int64_t step_of(const std::string& name);

// Whether a folder is what training writes: a run, one of its checkpoints, or an exported model.
bool is_output(const std::filesystem::path& folder);

}  // namespace startrail

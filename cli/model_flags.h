// What the commands that use a trained model share: sample, evaluate, export.
#pragma once

#include <cstdint>

#include "startrail/train/model/weights.h"

namespace startrail::cli {

constexpr int64_t kMostGiven = 1'000'000'000'000;  // of any count
constexpr const char* kCheckpointHelp =
    "A run's folder (its newest checkpoint), a checkpoint, or a Hugging Face folder";
constexpr const char* kLastHelp = "The last weights, where a checkpoint also has their running mean";

inline Which which(bool last) { return last ? Which::last : Which::mean; }

}  // namespace startrail::cli

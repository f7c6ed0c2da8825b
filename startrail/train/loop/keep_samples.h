// What a model makes, kept in its run's folder with every checkpoint so that people can watch it learn: text after the
// start of the held-out data, or a few pictures of each class. The trainer's observer asks for it; `startrail show`
// shows all of a run's.
#pragma once

#include <filesystem>
#include <functional>
#include <optional>
#include <string>

#include "startrail/train/loop/job.h"

namespace startrail {

struct KeptSample {
  std::string prompt = {}, text = {};  // of a GPT
  std::filesystem::path picture = {};  // of a DiT
};

// One from a checkpoint of the run, written beside those before it. Nothing where it could not be read or seen (tokens
// without a tokenizer, latents), or would take longer than some twenty seconds on two cores; and when `stop`, asked
// several times a second, says so. Computes on threads of its own with weights of its own, between steps, when
// activations are free; that memory is in no rank's peak.
std::optional<KeptSample> keep_sample(const TrainJob& job, const std::filesystem::path& checkpoint,
                                      const std::function<bool()>& stop = {});

}  // namespace startrail

// The loss of a trained model on held-out data, by any grid of ranks; of a GPT also by position, of a DiT also
// how many of its pictures a classifier recognises.
#pragma once

#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "startrail/run/comm/world.h"
#include "startrail/train/loop/config.h"
#include "startrail/train/model/weights.h"

namespace startrail {

struct EvaluateOptions {
  std::filesystem::path folder;    // of the model: model_folder(...)
  std::string data;                // all of it is held out; "": what the model's run held out
  int64_t tokens = 0;              // GPT: length of a sequence; 0: as in training
  int64_t windows = 0;             // sequences used; 0: all
  std::optional<int64_t> buckets;  // GPT: parts of the sequence whose loss is given; nothing: 16, or as many as tokens
  bool recognise = false;          // DiT: also train a classifier on the data and show it drawn pictures
  std::optional<double> guidance;  // DiT: of these pictures; nothing: guidance_of decides
  at::ScalarType type = at::kFloat;
  Which which = Which::mean;
  Sharing sharing;
  std::function<void(const std::string&)> on_progress;  // what is being done, from any thread
  std::function<void(const std::string&)> on_warning;
};

// Of a DiT's pictures.
struct Recognition {
  double accuracy = 0;    // share of held-out pictures the classifier is right about
  double recognised = 0;  // share of the drawn ones
  int64_t drawn = 0;
  double guidance = 1;
  std::vector<std::pair<std::string, double>> by_class;
};

struct Evaluation {
  double loss = 0;                    // nats a token; DiT: mean square
  int64_t sequences = 0, tokens = 0;  // how many, and of which length
  std::vector<double> by_position;    // GPT: of each bucket
  std::vector<std::string> skipped;   // DiT: what was wrong with each picture left out
  bool mean_weights = false;          // the running mean of the weights was used
  std::optional<Recognition> recognition;
};

// UserError for options of the other kind of model, for data that does not fit it or holds nothing to predict, and for
// ranks and grids that do not fit. Where ranks are processes, `processes` is their world, and only rank 0's has what
// was recognised.
Evaluation evaluate(const EvaluateOptions& options, World* processes = nullptr);

}  // namespace startrail

// From what is given to what is trained, in one direction: a base, which is the defaults or a checkpoint, and what was
// set on top of it, come to a configuration and a model.
#pragma once

#include <optional>
#include <string>

#include "startrail/train/loop/config.h"

namespace startrail {

// What training starts from, before anything is set.
struct Base {
  TrainConfig config = {};
  std::optional<ModelConfig> model = {};  // that of a checkpoint or a folder of weights; nothing: a new one is made
  std::string where = {};                 // that folder, for messages
  bool resumes = false;                   // its run goes on, so the model stays as it is
};

struct Resolved {
  TrainConfig config;  // what was left open is settled; model settings are as they were given
  ModelConfig model;
};

// A new model is the preset with what was set. Of one that is there only rotary positions, or a DiT's objective, may be
// set to something else, and only when a new run begins. UserError for other changes, for settings that this kind of
// model does not have, and for shapes that cannot be.
Resolved resolve(const Base& base, const Overrides& overrides = {});

// The configuration with every model setting as this model is: what is saved with a run. The preset is changed only
// where it is of another kind.
TrainConfig with_model(TrainConfig config, const ModelConfig& model);

// What was set in `table` that differs from the base: "data.validation is 0.1 and was 0.05".
std::string changes(const std::string& table, const Overrides& overrides, TrainConfig now, TrainConfig before);

}  // namespace startrail

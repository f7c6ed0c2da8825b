// The loss of a model on held-out examples, by any grid of ranks: used while training and by evaluate.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "startrail/train/data/source.h"
#include "startrail/train/model/model.h"

namespace startrail {

// Mean loss over the source's validation examples, and the mean by position: [buckets] of equal width.
struct Validation {
  std::optional<double> loss;  // nothing when there was nothing to predict
  std::vector<double> by_position;
  bool stopped = false;  // before it was done: there is no loss then
};
// Called by all ranks of `world`; `group` is the part of it that shares a sequence. When `stop` is there all have one;
// it is asked before each example, and true on one rank ends it.
Validation validate(const Model& model, const Source& source, const AttentionOptions& options, Group& world,
                    const std::shared_ptr<Group>& group, int64_t buckets, const std::function<bool()>& stop = {});

}  // namespace startrail

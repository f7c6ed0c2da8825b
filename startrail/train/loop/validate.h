// The loss of a model on held-out examples, by any grid of ranks: used while training and by evaluate.
#pragma once

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
};
// Called by all ranks of `world`; `group` is the part of it that shares a sequence.
Validation validate(const Model& model, const Source& source, const AttentionOptions& options, Group& world,
                    const std::shared_ptr<Group>& group, int64_t buckets);

}  // namespace startrail

// What a run will need before it starts: memory of a rank, by what it is for, and bytes sent in a step.
#pragma once

#include <string>

#include "startrail/train/loop/config.h"

namespace startrail {

struct Estimate {
  int64_t parameters = 0;
  // Of the rank that needs most, in bytes.
  int64_t weights = 0, gradients = 0, optimizer = 0;
  int64_t saved = 0;    // kept from the forward for the backward pass
  int64_t working = 0;  // at the busiest moment of a block, of attention, or of the loss
  // Sent by the busiest rank in a step.
  int64_t attention_bytes = 0, ring_attention_bytes = 0, weight_bytes = 0;

  int64_t rank_bytes() const { return weights + gradients + optimizer + saved + working; }
};

Estimate estimate(const TrainConfig& config, const ModelConfig& model);

// Bytes this process may still use: the machine's or the container's limit, whichever is less.
int64_t available_memory();

// UserError when the ranks do not fit into `available` bytes, with a length or a number of ranks that would.
void check_memory(const TrainConfig& config, const ModelConfig& model, int64_t available);

}  // namespace startrail

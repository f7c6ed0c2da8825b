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
  int64_t working = 0;  // at the busiest moment of a block, of attention, of the loss, or of adding up gradients
  // Sent by the busiest rank in a step.
  int64_t attention_bytes = 0, ring_attention_bytes = 0, weight_bytes = 0;

  int64_t rank_bytes() const { return weights + gradients + optimizer + saved + working; }
};

// `threads` are what each rank computes with; 0: its share of thread_count(config).
Estimate estimate(const TrainConfig& config, const ModelConfig& model, int threads = 0);

// Bytes this process holds by now. Before anything is computed that is the program and libtorch, which a rank that is a
// process pays for besides its estimate.
int64_t process_memory();

// For people: how much slower ranks are likely to be that are more than 8 to a thread of this process; else "".
std::string crowd_warning(int64_t ranks, int threads);

// Bytes this process may still use: the machine's or the container's limit, whichever is less.
int64_t available_memory();

// How much of a host a run may use, and how many of its ranks share that.
struct Room {
  int64_t bytes = 0;
  int64_t ranks = 0;  // 0: all
  int threads = 0;    // of each, as for estimate()
};
// UserError when the ranks do not fit into the room, with a length or a number of ranks that would.
void check_memory(const TrainConfig& config, const ModelConfig& model, const Room& room);

}  // namespace startrail

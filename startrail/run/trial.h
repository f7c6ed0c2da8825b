// One attention on the ranks of a world, measured and compared with the truth: what `startrail attend`, the tests and
// the benchmarks share. Whole sequences in and out; the split over ranks happens inside.
#pragma once

#include <map>
#include <vector>

#include <ATen/core/Tensor.h>

#include "startrail/run/attention.h"
#include "startrail/run/comm/clocks.h"
#include "startrail/run/comm/world.h"

namespace startrail {

struct TrialShape {
  int64_t batch = 1;
  int64_t heads = 8, key_heads = 8;
  int64_t dim = 64;
  at::ScalarType type = at::kFloat;
  uint64_t seed = 1;
  double query_gain = 1;  // > 1 makes scores large
};

// Unit-normal q, k, v and dout of the whole sequence, [batch, heads, tokens, dim].
struct Sample {
  at::Tensor q, k, v, dout;
};
Sample make_sample(const TrialShape& shape, int64_t tokens, int64_t key_tokens);

struct Answer {
  at::Tensor out, dq, dk, dv;
};

// In float64, from the mask's definition: no plan, no tiles, no ranks. Uses at::get_num_threads() threads.
Answer exact_answer(const Sample& sample, const Mask& mask, double scale);

// What PyTorch's own scaled-dot-product attention gives on one device, in the sample's type (float64: the exact
// answer). The yardstick of the promise: it shares no code with plans, tiles or kernels of ours.
Answer pytorch_answer(const Sample& sample, const Mask& mask, double scale);

struct RankReport {
  Volume forward, backward;              // bytes sent
  double seconds = 0, wait_seconds = 0;  // of both passes, and for messages
  std::map<Op, double> busy_seconds;     // by step
  int64_t peak_bytes = 0;                // tensor memory, own inputs included
  int64_t crossing_bytes = 0;            // of those sent, to ranks of other nodes
  double processor_seconds = 0;          // of its whole process; of several ranks in one process only the first has it
};

struct TrialRun {
  Answer answer;
  double forward_ms = 0, backward_ms = 0;
  std::vector<RankReport> ranks;
  CollectedTraces traces;  // when they were asked for, where rank 0 lives
};

// Splits the sample over the world's ranks, runs attention() and its backward, and joins the pieces where rank 0 lives;
// elsewhere the answer stays empty. All processes have the same sample and get the same reports.
TrialRun run_trial(const Sample& sample, const AttentionOptions& options, World& world, int threads,
                   bool traced = false);
// On options.grid's ranks as threads.
TrialRun run_trial(const Sample& sample, const AttentionOptions& options, int threads);

// Largest absolute error relative to the largest value of the truth, or to the terms that cancelled where the truth is
// zero; NaN counts as infinite.
struct Errors {
  double out = 0, dq = 0, dk = 0, dv = 0;
};
Errors compare(const Answer& answer, const Answer& truth, const Sample& sample, double scale);

// The promise: float32 within 3e-6 or twice PyTorch's own error on one device, bfloat16 within 2e-2 or 1.3 times it,
// whichever is larger; float64 within 1e-12. Always finite.
Errors tolerance(at::ScalarType type, const Errors& pytorch);
bool within(const Errors& errors, const Errors& limits);

}  // namespace startrail

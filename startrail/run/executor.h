// Carries out one rank's steps on tensors. Communication is posted as soon as its input is there and waited for only
// when its output is read, so a transfer overlaps the tiles before it. Follows the rank's Play (plan/play.h): it knows
// buffers and messages, and no scheme.
#pragma once

#include <functional>
#include <map>
#include <vector>

#include <ATen/core/Tensor.h>

#include "startrail/plan/problem.h"
#include "startrail/run/comm/group.h"
#include "startrail/run/kernel/kernel.h"

namespace startrail {

// Called before each step with its index; may throw, which ends the run on all ranks.
using StepHook = std::function<void(int rank, size_t index, const Step& step)>;

// What a run needs beside its steps.
struct ExecutorOptions {
  PlanHead head;
  Problem problem;
  Band band;
  double scale = 1;
  at::TensorOptions element;   // type and device of q, k, v
  at::ScalarType accumulator;  // of out, lse and gradients while they are partial: float32, or float64 for float64
  at::ScalarType partial;      // of partial out, dq, dk, dv on the wire
  const Kernel* kernel = nullptr;
  StepHook on_step;
  int layer = -1;  // for the trace
};

// Tensors of a buffer hold its tokens along dimension 0, so that chunks that are neighbours are one contiguous piece
// that can be sent (plan/problem.h says how many planes and stats):
//  - values [tokens, planes, batch, heads, dim] and, where there are stats, [tokens, stats, batch, heads];
//  - query: q; in a backward q and dout, with lse and delta;  keys, keys_grad: k and v (dk and dv);  out: out with lse;
//  - saved: q, out and lse as three tensors of one plane.
using Tensors = std::vector<at::Tensor>;

// A rank's steps and what they mean, for any number of runs.
struct Script {
  Steps steps;
  Play play;
};
// `results` as for play_steps.
std::shared_ptr<const Script> make_script(const PlanHead& head, Steps steps, int rank,
                                          const std::vector<Block>& results);

class Executor {
 public:
  Executor(const ExecutorOptions& options, Group& group, std::shared_ptr<const Script> script);
  Executor(const ExecutorOptions& options, Group& group, Steps steps, const std::vector<Block>& results)
      : Executor(options, group, make_script(options.head, std::move(steps), group.rank(), results)) {}
  ~Executor();

  // Gives a block to start from.
  void put(const Block& block, Tensors tensors);

  void run();

  // A result, or a block that is kept for the backward, after the run; waits for what is still on its way.
  Tensors take(const Block& block);
  // Waits until everything sent has been received.
  void finish();

 private:
  // What is needed of an arrival until it is joined.
  struct Coming {
    std::vector<Pending> pending;
    std::vector<Tensors> received;  // of each receive, where it does not land in its buffer
    std::vector<Tensors> own;       // the rank's own ingredients
  };

  void act(size_t index);
  void attend(const Action& action);
  void delta(const Action& action);
  void communicate(size_t index);
  void settle(int arrival);
  Tensors join(const Arrival& arrival, const Coming& coming) const;
  Tensors put_together(const Arrival& arrival, const std::vector<Tensors>& ingredients) const;
  void add(Data data, Tensors& into, const Tensors& more) const;
  void finish(const Action::Send& send);

  Tensors make_tensors(const Form& form) const;
  void make_buffer(int buffer);
  at::ScalarType type_of(Number number) const;
  Tensors rows(int buffer, const Run& run) const;
  Tensors rows(const Part& part) const;
  std::vector<int> chunks_of(int buffer, const Run& run) const;
  at::Tensor slice_of(const at::Tensor& all_heads, Data data, int slice) const;
  Tensors outgoing(const Message& message) const;
  std::shared_ptr<const TraceLabel> label(size_t step, const std::string& block) const;

  const ExecutorOptions& options_;
  Group& group_;
  std::shared_ptr<const Script> script_;
  const Steps& steps_;
  const Play& play_;
  std::vector<int> last_waits_;  // those still to come
  std::vector<Tensors> buffers_;
  std::map<int, Coming> coming_;                                    // by arrival
  std::map<std::pair<size_t, size_t>, std::vector<Pending>> sent_;  // by action and index
};

}  // namespace startrail

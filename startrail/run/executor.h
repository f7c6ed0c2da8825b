// Carries out one rank's steps on tensors. Communication is posted as soon as its input is there and waited for only
// when its output is read, so a transfer overlaps the tiles before it. Knows blocks and steps, and no scheme.
#pragma once

#include <functional>
#include <map>
#include <vector>

#include <ATen/core/Tensor.h>

#include "startrail/plan/volume.h"
#include "startrail/run/comm/group.h"
#include "startrail/run/kernel/kernel.h"

namespace startrail {

// Called before each step with its index; may throw, which ends the run on all ranks.
using StepHook = std::function<void(int rank, size_t index, const Step& step)>;

// What a run needs beside its steps.
struct Job {
  Problem problem;
  Band band;
  double scale = 1;
  Pass pass = Pass::forward;
  int slices = 1;
  at::TensorOptions element;   // type and device of q, k, v
  at::ScalarType accumulator;  // of out, lse and gradients while they are partial: float32, or float64 for float64
  at::ScalarType partial;      // of partial out, dq, dk, dv on the wire
  const Kernel* kernel = nullptr;
  StepHook on_step;
};

// Tensors of a block hold its tokens along dimension 0, so that a chunk is one contiguous piece that can be sent:
//  - query: q [tokens, 1, batch, heads, dim];
//    in a backward q and dout [tokens, 2, batch, heads, dim], lse and delta [tokens, 2, batch, heads];
//  - keys, keys_grad: k and v (dk and dv) [tokens, 2, batch, key heads, dim];
//  - out: out [tokens, 1, batch, heads, dim] and lse [tokens, 1, batch, heads];
//  - out_grad, query_grad: [tokens, 1, batch, heads, dim].
using Tensors = std::vector<at::Tensor>;

class Executor {
 public:
  Executor(const Job& job, Group& group);

  // Gives a block to start from.
  void put(const Block& block, Tensors tensors);
  // For a backward: the forward's q and finished out, lse in the layout of the slice; the delta step reads them.
  void put_saved(Tensors q_out_lse) { saved_ = std::move(q_out_lse); }
  // Asks that a block survive its last step, for take().
  void keep(const Block& block) { kept_.push_back(block); }

  void run(const Steps& steps);

  // A block after the run; waits for what is still on its way to it.
  Tensors take(const Block& block);
  // Waits until everything sent has been received.
  void finish();

 private:
  struct Slot {
    Tensors tensors;
    std::vector<Pending> incoming;
    std::vector<std::function<void()>> finish;  // join what came in elsewhere than in place, in this order
  };

  void step(const Step& step);
  void attend(const Step& step);
  void delta(const Step& step);
  void exchange(const Step& step);
  void gather(const Step& step);
  void merge(const Step& step);
  void to_heads(const Step& step);
  void to_tokens(const Step& step);

  Tensors& read(const Block& block);
  Tensors& accumulate(const Block& block, double lse);
  Tensors make_tensors(const Block& block) const { return make_tensors(block, job_.accumulator); }
  Tensors make_tensors(const Block& block, at::ScalarType partial) const;  // partial: of a partial result's values
  int64_t tokens_of(Data data, const std::vector<int>& chunks) const;
  void send(const Tensors& tensors, int to, const Step& step, at::ScalarType type);
  void receive(Slot& slot, const Tensors& tensors, int from, const Step& step);
  void join(Data data, Tensors& into, const Tensors& more) const;
  void add_to(const Block& block, Tensors more);
  void forget(const Steps& steps, size_t index);

  const Job& job_;
  Group& group_;
  std::map<Block, Slot> slots_;
  std::map<Block, size_t> last_use_;
  std::vector<Block> kept_;
  std::vector<Pending> sends_;
  Tensors saved_;
};

}  // namespace startrail

// AdamW whose state is cut over all ranks (ZeRO-1): each rank adds up, in rank order, the gradients of its own shard,
// updates it in float32 and sends the new weights to the others.
#pragma once

#include <memory>

#include "startrail/run/comm/group.h"
#include "startrail/train/model/parameters.h"

namespace startrail {

struct AdamWOptions {
  double beta1 = 0.9, beta2 = 0.95, eps = 1e-8;
  double weight_decay = 0.1;  // of matrices, not of gains
  double clip = 1;            // largest norm of the whole gradient; 0: any
  double ema = 0;             // of the running mean of the weights, how much stays in a step; 0: no such mean
};

class ShardedAdamW {
 public:
  ShardedAdamW(const Model& model, ParameterRow& row, std::shared_ptr<Group> world, const AdamWOptions& options);

  // Gives this rank's shard its values, float32, and everyone the whole row. The mean starts from them too.
  void set_weights(const at::Tensor& shard_values);

  // One update from the sum over ranks of row.gradients(), times `scale`; clears them. Returns the norm of the scaled
  // gradient before clipping. With a norm that is not finite nothing is changed.
  double step(double learning_rate, double scale);

  const Shard& shard() const { return shard_; }
  // Of the shard, float32: the weights themselves, and the running means of gradients and of their squares.
  at::Tensor& weights() { return weights_; }
  at::Tensor& mean() { return mean_; }
  at::Tensor& square() { return square_; }
  // The running mean of the weights; undefined when there is none. Early on less stays, so that it forgets the start.
  at::Tensor& ema() { return ema_; }
  int64_t steps = 0;  // taken so far

 private:
  at::Tensor sum_gradients();
  void share_weights();

  ParameterRow& row_;
  std::shared_ptr<Group> world_;
  AdamWOptions options_;
  Shard shard_;
  at::Tensor weights_, mean_, square_, ema_;
  struct Range {
    int64_t begin, count;  // within the shard
    bool decay;
  };
  std::vector<Range> ranges_;
};

// Of how many values the pieces are in which gradients of a shard are summed; each rank holds one from every rank.
int64_t gradient_piece(int64_t shard, int ranks);

struct ScheduleOptions {
  std::string kind = "cosine";  // cosine, linear, constant
  double learning_rate = 1e-3;
  double floor = 0.1;    // where it ends, as a share of learning_rate
  int64_t warmup = 100;  // steps from 0 to learning_rate
  int64_t steps = 1000;  // in all
};
// Of step 0, 1, ...
double learning_rate(const ScheduleOptions& options, int64_t step);

}  // namespace startrail

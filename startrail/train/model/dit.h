// The diffusion transformer: patches of pictures or videos as tokens, layers modulated by time and class (adaLN-zero).
// Single-device code, with weights named as diffusers names them; what it knows of ranks is in the Sequence.
//
// A sequence holds one picture, or several one after the other with a document mask. What all its tokens share (time,
// class) is no token: every rank computes it, and its gradient is the sum over the ranks' own tokens, so it counts
// once.
#pragma once

#include "startrail/train/model/dit_config.h"
#include "startrail/train/model/model.h"

namespace startrail {

class Dit : public Model {
 public:
  explicit Dit(const DitConfig& config);

  // Mean square error of each token's prediction.
  Loss loss(const Example& example, const Sequence& sequence) const override;
  nlohmann::json config() const override;

  // For the rank's own patches [own tokens, channels * patch] what the objective asks for, in the same order of
  // features: channel, frame, row, column.
  at::Tensor predict(const at::Tensor& patches, const std::vector<Condition>& conditions,
                     const Sequence& sequence) const;

  const DitConfig& shape() const { return config_; }

 private:
  std::vector<at::Tensor> layer_weights(int64_t layer) const;
  at::Tensor positions_of(const at::Tensor& places) const;

  DitConfig config_;
};

}  // namespace startrail

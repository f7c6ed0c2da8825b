// What the trainer needs of a model, and what a model is given of the ranks. A second kind of model is a second
// implementation of Model and a source of its examples (data/source.h); the trainer stays the same.
#pragma once

#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "startrail/run/attention.h"

namespace startrail {

struct Parameter {
  std::string name;  // as Hugging Face calls it
  std::vector<int64_t> shape;
  double mean = 0, deviation = 0;  // of its first values, normally distributed
  bool decay = true;               // weight decay applies: matrices, not gains
  at::Tensor value = {};           // a leaf in the compute type, bound by the trainer (parameters.h)

  int64_t size() const;
};

// What all tokens of a noisy picture share.
struct Condition {
  double time = 0;     // as the model sees it, 0 to 1,000
  int64_t label = -1;  // its class; -1: not told
};

// One sequence as a rank holds it: its own tokens, in the order of chunk_pieces.
struct Example {
  int64_t tokens = 0;  // of the whole sequence
  Mask mask;
  at::Tensor input;   // GPT: token ids [own tokens]; DiT: noisy patches [own tokens, features]
  at::Tensor target;  // GPT: the next token's id, negative where nothing is to be predicted; DiT: like input
  std::vector<Condition> conditions = {};  // DiT: of each picture in the sequence
};

// All that a model knows of ranks: where its tokens are in the sequence, and an attention that reaches the others.
struct Sequence {
  at::Tensor positions;  // [own tokens] int64
  AttentionOptions attention;
  std::shared_ptr<Group> group;
  bool recompute = true;  // save a block's input and attention's result only, recompute the rest in the backward pass
};
Sequence make_sequence(const Example& example, AttentionOptions options, std::shared_ptr<Group> group, bool recompute);

struct Loss {
  at::Tensor sum;     // scalar, differentiable: over the rank's own valid tokens
  int64_t count = 0;  // of them
  at::Tensor each;    // [own tokens], 0 where not valid
};

class Model {
 public:
  virtual ~Model() = default;
  std::vector<Parameter>& parameters() { return parameters_; }
  const std::vector<Parameter>& parameters() const { return parameters_; }

  virtual Loss loss(const Example& example, const Sequence& sequence) const = 0;
  // What config.json says of it.
  virtual nlohmann::json config() const = 0;

 protected:
  std::vector<Parameter> parameters_;
};

}  // namespace startrail

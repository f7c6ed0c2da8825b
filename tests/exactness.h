// Cases of the promise "exact on every grid", shared by the fast and the long test.
#pragma once

#include <string>
#include <vector>

#include "startrail/run/trial.h"

namespace startrail {

// The sequence, without how it is split: one float64 reference serves every run of it.
struct WholeSequence {
  Mask mask;
  int64_t tokens = 64;
  int64_t heads = 16, key_heads = 16, dim = 8;
  uint64_t seed = 1;
};

// A split of it.
struct Split {
  Grid grid;
  Order order = Order::zigzag;
  Direction direction = Direction::keys;
  at::ScalarType type = at::kFloat;
};

// The masks that are tried, by name, for a number of tokens.
const std::vector<std::string>& mask_names();
Mask make_mask(const std::string& name, int64_t tokens);

// Holds one sequence's inputs, its float64 answer and, when needed, PyTorch's own errors.
class Proof {
 public:
  explicit Proof(const WholeSequence& sequence);
  // "" when the split run is within the promise and sends what the formulas say, else what went wrong.
  std::string check(const Split& split);

 private:
  Errors pytorch_errors(at::ScalarType type);

  WholeSequence sequence_;
  Sample sample_;  // bfloat16 values, so that both types compute the same thing
  Answer truth_;
  std::vector<std::pair<at::ScalarType, Errors>> pytorch_errors_;
};

std::string to_text(const Split& split);

}  // namespace startrail

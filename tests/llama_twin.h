// The model against transformers: loss, every gradient, logits and steps of AdamW, on one rank and on many, and back
// again. Shared by the fast and the long test.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace startrail {

// Of 8 ranks.
struct LlamaSplit {
  std::string grid;
  bool recompute;
  bool steps = false;  // of AdamW too
};

// Every kind of model on one rank, and the plain one of each model_type on these.
void expect_like_transformers_and_back(int64_t tokens, const std::vector<LlamaSplit>& splits);

}  // namespace startrail

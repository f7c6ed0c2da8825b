// Which keys a query may see. Every mask here is a band: query q sees the keys [begin(q), end(q)), and both bounds
// never fall as q grows. tile.h classes tiles from that alone, and kernels need only the two bounds of a row.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace startrail {

struct Mask {
  bool causal = false;  // a query sees no later key
  int64_t window = 0;   // > 0: only keys nearer than this (itself counts); with causal, the last `window` keys
  std::vector<int64_t> documents{};  // lengths of packed documents: a query sees only keys of its own document
  int64_t prefix = 0;                // > 0 (with causal): the first `prefix` keys are seen by every query
  int64_t padding = 0;               // the last `padding` tokens see nothing and are seen by nobody

  bool full() const { return !causal && window == 0 && documents.empty() && prefix == 0 && padding == 0; }
};

// Refuses what has no meaning: documents that do not add up, a prefix without causal, masks across unequal lengths, ...
void check_mask(const Mask& mask, int64_t query_tokens, int64_t key_tokens);

// "causal, window 512, documents 1000+96+3000".
std::string to_text(const Mask& mask);

struct Span {
  int64_t begin = 0, end = 0;  // empty when begin == end
};

// A checked mask on a sequence, ready to be asked row by row.
class Band {
 public:
  Band(const Mask& mask, int64_t query_tokens, int64_t key_tokens);
  Span keys_of(int64_t query) const;

 private:
  Mask mask_;
  int64_t keys_;                 // keys that may be seen at all
  std::vector<int64_t> starts_;  // first token of each document, and the end of the last
};

}  // namespace startrail

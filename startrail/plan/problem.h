// One attention in numbers: shapes, the bytes of each kind of value, who owns which tokens; and what a block of it or a
// message takes up. Plans are priced with it, and the executor makes its tensors by it.
#pragma once

#include <cstdint>

#include "startrail/layout/chunks.h"
#include "startrail/layout/mask.h"
#include "startrail/plan/play.h"

namespace startrail {

struct Problem {
  int64_t batch = 1;
  int heads = 1, key_heads = 1;
  int64_t dim = 64;
  int element_bytes = 4;  // q, k, v, dout and finished results
  int partial_bytes = 4;  // partial out, dq, dk, dv on the wire
  int stat_bytes = 4;     // lse and delta, and partial results where they are added up
  Chunks queries, keys;   // of the plan's chunks, the tokens of both sides

  const Chunks& side(Data data) const { return is_key_side(data) ? keys : queries; }
};

struct ProblemShape {
  int64_t batch = 1;
  int heads = 1, key_heads = 1;
  int64_t dim = 64;
  int element_bytes = 4, partial_bytes = 4;  // 8-byte elements make everything wide
};
Problem make_problem(const ProblemShape& shape, const Layout& queries, const Layout& keys);

// Which of the problem's types values have.
enum class Number { element, partial, accumulator };
int bytes_of(Number number, const Problem& problem);

// What memory some tokens take: `planes` of values and `stats` planes of one number a head and token.
struct Form {
  int64_t tokens = 0, heads = 1;
  int planes = 1, stats = 0;
  Number values = Number::element;

  int64_t value_bytes(const Problem& problem) const;
  int64_t bytes(const Problem& problem) const;
};

// A block as it is held. A result that an all-to-all brought home is finished: values only.
Form held_form(const Block& block, const PlanHead& head, const Problem& problem);
// A message on the wire. An all-to-all carries values only.
Form wire_form(const Message& message, const PlanHead& head, const Problem& problem);

// Key/value heads that each slice of the heads holds: at least one, so they are copied when there are fewer than
// slices.
inline int key_heads_of_slice(int key_heads, int slices) { return key_heads > slices ? key_heads / slices : 1; }
// True when heads of this data are copied to several slices, whose gradients are then summed.
inline bool is_copied(Data data, const PlanHead& head, const Problem& problem) {
  return is_key_side(data) && problem.key_heads < head.slices;
}

// Unmasked (query, key) pairs that one rank's steps attend, in one head of one row of the batch.
int64_t rank_work(const Steps& steps, const Problem& problem, const Mask& mask);

}  // namespace startrail

// A plan writes down one attention exchange as data: for every rank, the ordered steps it takes.
// Makers write plans; check.cc, volume.cc, text.cc and run/ only read them. No tensors here, and no scheme either:
// a plan may assign tiles to ranks in ways no grid does.
#pragma once

#include <compare>
#include <string>
#include <vector>

#include "startrail/layout/grid.h"

namespace startrail {

enum class Pass {
  forward,
  backward_keys,     // keys and values ride the rings, their gradients one step behind
  backward_queries,  // queries (with dout, lse, delta) ride, their gradient one step behind
};

// What a block holds for its tokens.
enum class Data {
  query,       // forward: q; backward: q, dout, lse and delta
  keys,        // k and v
  out,         // out and lse: partial until every key was attended
  out_grad,    // dout
  query_grad,  // dq: partial until every key was attended
  keys_grad,   // dk and dv: partial until every query was attended
};

inline constexpr int kAllHeads = -1;

// The tokens of some chunks, of one slice of the heads.
struct Block {
  Data data = Data::query;
  std::vector<int> chunks;  // in the order the block holds them
  int slice = kAllHeads;    // which of grid.heads slices

  auto operator<=>(const Block&) const = default;
};

enum class Op {
  all_to_all,  // trade chunks for heads over `group`: in -> out
  gather,      // every rank of `group` ends with the blocks of all: in -> out
  delta,       // local, backward: delta = rowsum(dout * out), then q, dout, lse, delta form the query block: in -> out
  exchange,    // send `in` to `to`, receive `out` from `from`; either may be absent (peer -1)
  attend,      // local: queries `in` x keys `out`, added to out, or to query_grad and keys_grad in a backward
  merge,       // send each part of the partial `in` to its owner in `group`, who joins them in rank order: in -> out
};

// Sending or merging a partial block (out, query_grad, keys_grad) gives it away; receiving one adds it to what is
// there.
struct Step {
  Op op = Op::attend;
  Block in, out;
  std::vector<int> group;  // world ranks, in the order of the chunks they bring or own
  int to = -1, from = -1;  // world ranks of an exchange

  bool operator==(const Step&) const = default;
};
using Steps = std::vector<Step>;

struct Plan {
  Pass pass = Pass::forward;
  int slices = 1;            // into how many slices the heads are split
  std::vector<Steps> ranks;  // one list of steps per rank

  bool operator==(const Plan&) const = default;
};

inline bool is_partial(Data data) { return data == Data::out || data == Data::query_grad || data == Data::keys_grad; }

inline bool is_key_side(Data data) { return data == Data::keys || data == Data::keys_grad; }

// Member `index`'s share of a block that holds `shares` equal ones after each other, as gather and merge see it.
std::vector<int> share_of(const std::vector<int>& chunks, size_t shares, size_t index);

// True when an exchange has the half named.
inline bool sends(const Step& step) { return step.op == Op::exchange && step.to >= 0; }
inline bool receives(const Step& step) { return step.op == Op::exchange && step.from >= 0; }

// The blocks an attend adds to.
Block out_of(const Step& attend);
Block query_grad_of(const Step& attend);
Block keys_grad_of(const Step& attend);

}  // namespace startrail

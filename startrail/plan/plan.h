// A plan writes down one attention exchange as data: for every rank, the ordered steps it takes.
// Makers write plans; play.h says what their steps mean, and check.cc, volume.cc, memory.cc and run/ follow that.
// No tensors here, and no scheme either: a plan may assign tiles to ranks in ways no grid does.
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
inline constexpr Pass kPasses[] = {Pass::forward, Pass::backward_keys, Pass::backward_queries};

// What a block holds for its tokens.
enum class Data {
  query,       // forward: q; backward: q, dout, lse and delta
  keys,        // k and v
  saved,       // backward: q, out and lse as the forward left them
  out,         // out and lse: partial until every key was attended
  out_grad,    // dout
  query_grad,  // dq: partial until every key was attended
  keys_grad,   // dk and dv: partial until every query was attended
};
inline constexpr Data kData[] = {Data::query,    Data::keys,       Data::saved,    Data::out,
                                 Data::out_grad, Data::query_grad, Data::keys_grad};

inline constexpr int kAllHeads = -1;

// The tokens of some chunks, of one slice of the heads. In a step: those chunks of what the rank holds, which may be
// more.
struct Block {
  Data data = Data::query;
  std::vector<int> chunks;  // in the order the block holds them
  int slice = kAllHeads;    // which of the plan's slices

  auto operator<=>(const Block&) const = default;
};

enum class Op {
  all_to_all,  // trade chunks for heads over `group`, or back: in -> out
  gather,      // every rank of `group` ends with the chunks of all: in -> out
  delta,  // local, backward: delta = rowsum(dout * out), then q, dout, lse, delta form the query block: in, with -> out
  exchange,  // send `in` to `to`, receive `out` from `from`; either may be absent (peer -1)
  attend,    // local: queries `in` x keys `with`, added to out, or to query_grad and keys_grad in a backward
  merge,  // send each member's chunks of the partial `in` to it; the owner joins them in the group's order: in -> out
};
inline constexpr Op kOps[] = {Op::all_to_all, Op::gather, Op::delta, Op::exchange, Op::attend, Op::merge};

// A rank of a group and the chunks it brings (gather), owns (merge) or has at home (all_to_all); there may be none.
struct Member {
  int rank = 0;
  std::vector<int> chunks;

  bool operator==(const Member&) const = default;
};

// Sending or merging a partial block (out, query_grad, keys_grad) gives it away; receiving one adds it to what is
// there.
struct Step {
  Op op = Op::attend;
  Block in{}, with{}, out{};  // read, read too, written; what an operation does not name is empty
  std::vector<Member>
      group{};  // their chunks, one after the other, are those of the block that is shared out or put together
  int to = -1, from = -1;  // ranks of an exchange

  bool operator==(const Step&) const = default;
};
using Steps = std::vector<Step>;

// What all ranks' steps have in common.
struct PlanHead {
  Pass pass = Pass::forward;
  int slices = 1;           // into how many slices the heads are split
  std::vector<int> owners;  // the rank that starts and ends with each chunk

  int chunks() const { return static_cast<int>(owners.size()); }
  // The chunks of one rank, in the order it holds them.
  std::vector<int> owned_by(int rank) const;
  bool operator==(const PlanHead&) const = default;
};

struct Plan : PlanHead {
  std::vector<Steps> ranks;  // one list of steps per rank

  bool operator==(const Plan&) const = default;
};

// Chunk r belongs to rank r, as a grid has it.
std::vector<int> own_chunk_each(int ranks);

inline bool is_partial(Data data) { return data == Data::out || data == Data::query_grad || data == Data::keys_grad; }

inline bool is_key_side(Data data) { return data == Data::keys || data == Data::keys_grad; }

// True when an exchange has the half named.
inline bool sends(const Step& step) { return step.op == Op::exchange && step.to >= 0; }
inline bool receives(const Step& step) { return step.op == Op::exchange && step.from >= 0; }

}  // namespace startrail

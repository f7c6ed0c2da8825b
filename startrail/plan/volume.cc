#include "startrail/plan/volume.h"

#include <algorithm>

#include "startrail/base/error.h"

namespace startrail {
namespace {

// Bytes of one token of one head.
int64_t head_token_bytes(Data data, Pass pass, const Problem& problem, int value_bytes) {
  const int64_t values = problem.dim * value_bytes;
  switch (data) {
    case Data::query:
      return pass == Pass::forward ? values : 2 * (values + problem.stat_bytes);
    case Data::keys:
      return 2 * values;
    case Data::out:
      return values + problem.stat_bytes;
    case Data::out_grad:
      return values;
    case Data::query_grad:
      return values;
    case Data::keys_grad:
      return 2 * values;
  }
  throw InternalError("unknown data");
}

int64_t heads_of(Data data, int slice, int slices, const Problem& problem) {
  if (is_key_side(data)) return slice == kAllHeads ? problem.key_heads : key_heads_of_slice(problem.key_heads, slices);
  return slice == kAllHeads ? problem.heads : problem.heads / slices;
}

const Layout& layout_of(Data data, const Problem& problem) {
  return is_key_side(data) ? problem.keys : problem.queries;
}

// Bytes of `chunks` of one slice on the wire, partial results in their own type.
int64_t wire_bytes(const Block& block, const std::vector<int>& chunks, const Plan& plan, const Problem& problem) {
  return block_bytes({block.data, chunks, block.slice}, plan, problem,
                     is_partial(block.data) ? problem.partial_bytes : problem.element_bytes);
}

}  // namespace

int64_t block_bytes(const Block& block, const Plan& plan, const Problem& problem, int value_bytes) {
  return problem.batch * heads_of(block.data, block.slice, plan.slices, problem) *
         chunk_tokens(layout_of(block.data, problem), block.chunks) *
         head_token_bytes(block.data, plan.pass, problem, value_bytes);
}

// Finished results go back over the heads in the element type, and lse stays; gradients of copied key/value heads are
// still to be summed, so they go as partials.
int64_t traded_bytes(Data data, int chunk, const Plan& plan, const Problem& problem) {
  const bool copied = data == Data::keys_grad && problem.key_heads < plan.slices;
  const int value_bytes = copied ? problem.partial_bytes : problem.element_bytes;
  const int64_t values = problem.dim * value_bytes * (is_key_side(data) ? 2 : 1);
  return problem.batch * heads_of(data, 0, plan.slices, problem) * chunk_tokens(layout_of(data, problem), chunk) *
         values;
}

std::string to_text(Traffic kind) {
  switch (kind) {
    case Traffic::p2p:
      return "p2p";
    case Traffic::gather:
      return "gather";
    case Traffic::merge:
      return "merge";
    case Traffic::all_to_all:
      return "all_to_all";
  }
  throw InternalError("unknown traffic");
}

void each_message(const Plan& plan, int rank, const Problem& problem,
                  const std::function<void(const Message&)>& visit) {
  const auto send = [&](Traffic kind, int peer, int64_t bytes) {
    if (bytes > 0) visit({kind, peer, bytes});
  };
  for (const Step& step : plan.ranks.at(rank)) {
    switch (step.op) {
      case Op::exchange:
        if (sends(step)) send(Traffic::p2p, step.to, wire_bytes(step.in, step.in.chunks, plan, problem));
        break;
      case Op::gather:
        for (int64_t bytes = wire_bytes(step.in, step.in.chunks, plan, problem); int peer : step.group)
          if (peer != rank) send(Traffic::gather, peer, bytes);
        break;
      case Op::merge:
        for (size_t i = 0; i < step.group.size(); ++i)
          if (step.group[i] != rank)
            send(Traffic::merge, step.group[i],
                 wire_bytes(step.in, share_of(step.in.chunks, step.group.size(), i), plan, problem));
        break;
      case Op::all_to_all:
        for (int peer : step.group) {
          if (peer == rank) continue;
          const bool to_heads = step.in.slice == kAllHeads;
          send(Traffic::all_to_all, peer, traded_bytes(step.in.data, to_heads ? rank : peer, plan, problem));
        }
        break;
      case Op::delta:
      case Op::attend:
        break;
    }
  }
}

Volume count_volume(const Plan& plan, int rank, const Problem& problem) {
  Volume volume;
  each_message(plan, rank, problem, [&](const Message& message) { volume[message.kind] += message.bytes; });
  return volume;
}

int64_t count_crossing(const Plan& plan, int rank, const Problem& problem, const Cluster& cluster) {
  int64_t bytes = 0;
  each_message(plan, rank, problem, [&](const Message& message) {
    if (cluster.crosses(rank, message.peer)) bytes += message.bytes;
  });
  return bytes;
}

Volume formula_volume(const Grid& grid, Pass pass, int rank, const Problem& problem) {
  const int u = grid.heads, a = grid.team, b = grid.stripe, c = grid.ring;
  const int64_t e = problem.element_bytes, p = problem.partial_bytes, s = problem.stat_bytes, d = problem.dim;
  const int64_t query_heads = problem.batch * (problem.heads / u);
  const int64_t key_heads = problem.batch * key_heads_of_slice(problem.key_heads, u);
  // Tokens of a rank's heads group, its team and its stripe; with equal chunks u, u*a and u*b chunks.
  const auto tokens = [&](const Layout& layout, std::vector<int> ranks, std::initializer_list<Axis> axes) {
    for (Axis axis : axes) {
      std::vector<int> wider;
      for (int r : ranks)
        for (int member : line_through(grid, r, axis)) wider.push_back(member);
      ranks = std::move(wider);
    }
    return chunk_tokens(layout, ranks);
  };
  const int64_t q_own = chunk_tokens(problem.queries, rank), k_own = chunk_tokens(problem.keys, rank);
  const int64_t q_group = tokens(problem.queries, {rank}, {Axis::heads});
  const int64_t k_group = tokens(problem.keys, {rank}, {Axis::heads});
  const int64_t q_team = tokens(problem.queries, {rank}, {Axis::team, Axis::heads});
  const int64_t k_stripe = tokens(problem.keys, {rank}, {Axis::stripe, Axis::heads});
  // What visits on the ring before a given hop: the blocks this rank forwards.
  const std::vector<int> ring = line_through(grid, rank, Axis::ring);
  const int at = place_of(grid, rank)[static_cast<int>(Axis::ring)];
  const auto visiting = [&](const Layout& layout, Axis axis, int first, int last) {
    int64_t sum = 0;
    for (int step = first; step <= last; ++step)
      sum += tokens(layout, {ring[(at - step + c) % c]}, {axis, Axis::heads});
    return sum;
  };

  Volume volume;
  if (pass == Pass::forward) {
    volume[Traffic::all_to_all] = (u - 1) * q_own * query_heads * d * e + (u - 1) * k_own * key_heads * 2 * d * e +
                                  (q_group - q_own) * query_heads * d * e;
    volume[Traffic::gather] = (a - 1) * q_group * query_heads * d * e + (b - 1) * k_group * key_heads * 2 * d * e;
    volume[Traffic::p2p] = visiting(problem.keys, Axis::stripe, 0, c - 2) * key_heads * 2 * d * e;
    volume[Traffic::merge] = (q_team - q_group) * query_heads * (d * p + s);
    return volume;
  }
  const int64_t key_grad_back = problem.key_heads < u ? p : e;  // copied heads are summed on the way back
  volume[Traffic::all_to_all] = (u - 1) * q_own * query_heads * d * e + (q_group - q_own) * query_heads * d * e +
                                (k_group - k_own) * key_heads * 2 * d * key_grad_back;
  volume[Traffic::gather] =
      (a - 1) * q_group * query_heads * 2 * (d * e + s) + (b - 1) * k_group * key_heads * 2 * d * e;
  volume[Traffic::merge] = (q_team - q_group) * query_heads * d * p + (k_stripe - k_group) * key_heads * 2 * d * p;
  // The riding block is forwarded at steps 0 .. c-2, its gradient at 1 .. c-1: c - 1 hops each.
  if (pass == Pass::backward_keys)
    volume[Traffic::p2p] = visiting(problem.keys, Axis::stripe, 0, c - 2) * key_heads * 2 * d * e +
                           visiting(problem.keys, Axis::stripe, 1, c - 1) * key_heads * 2 * d * p;
  else
    volume[Traffic::p2p] = visiting(problem.queries, Axis::team, 0, c - 2) * query_heads * 2 * (d * e + s) +
                           visiting(problem.queries, Axis::team, 1, c - 1) * query_heads * d * p;
  return volume;
}

Pass cheaper_backward(const Grid& grid, const Problem& problem) {
  // Gathers, merges and all-to-alls are the same. Every chunk of the riding side is in as many blocks as its axis is
  // long, and all blocks make the same hops, so the hops need not be counted.
  const int64_t e = problem.element_bytes, p = problem.partial_bytes, s = problem.stat_bytes, d = problem.dim;
  const int64_t query_heads = problem.heads / grid.heads, key_heads = key_heads_of_slice(problem.key_heads, grid.heads);
  const int64_t keys = grid.stripe * problem.keys.tokens * key_heads * 2 * d * (e + p);
  const int64_t queries = grid.team * problem.queries.tokens * query_heads * (2 * (d * e + s) + d * p);
  return grid.ring > 1 && queries < keys ? Pass::backward_queries : Pass::backward_keys;
}

}  // namespace startrail

#include "startrail/plan/volume.h"

namespace startrail {

namespace {

template <class Visit>
void each_message(const PlanHead& head, const Play& play, const Problem& problem, const Visit& visit) {
  for (size_t step = 0; step < play.actions.size(); ++step)
    for (const Message& message : play.actions[step].sends)
      if (const int64_t bytes = wire_form(message, head, problem).bytes(problem); bytes > 0)
        visit(step, message, bytes);
}

}  // namespace

void each_message(const Plan& plan, int rank, const Problem& problem,
                  const std::function<void(size_t step, const Message&, int64_t bytes)>& visit) {
  each_message(plan, play_rank(plan, rank), problem, visit);
}

Volume count_volume(const PlanHead& head, const Play& play, const Problem& problem) {
  Volume volume;
  each_message(head, play, problem,
               [&](size_t, const Message& message, int64_t sent) { volume[message.kind] += sent; });
  return volume;
}

Volume count_volume(const Plan& plan, int rank, const Problem& problem) {
  return count_volume(plan, play_rank(plan, rank), problem);
}

int64_t count_crossing(const Plan& plan, int rank, const Problem& problem, const Cluster& cluster) {
  int64_t bytes = 0;
  each_message(plan, rank, problem, [&](size_t, const Message& message, int64_t sent) {
    if (cluster.crosses(rank, message.peer)) bytes += sent;
  });
  return bytes;
}

Volume formula_volume(const Grid& grid, Pass pass, int rank, const Problem& problem) {
  const int u = grid.heads, a = grid.team, b = grid.stripe, c = grid.ring;
  const int64_t e = problem.element_bytes, p = problem.partial_bytes, s = problem.stat_bytes, d = problem.dim;
  const int64_t query_heads = problem.batch * (problem.heads / u);
  const int64_t key_heads = problem.batch * key_heads_of_slice(problem.key_heads, u);
  // Tokens of a rank's heads group, its team and its stripe; with equal chunks u, u*a and u*b chunks.
  const auto tokens = [&](const Chunks& side, std::vector<int> ranks, std::initializer_list<Axis> axes) {
    for (Axis axis : axes) {
      std::vector<int> wider;
      for (int r : ranks)
        for (int member : line_through(grid, r, axis)) wider.push_back(member);
      ranks = std::move(wider);
    }
    return side.tokens(ranks);
  };
  const int64_t q_own = problem.queries.tokens(rank), k_own = problem.keys.tokens(rank);
  const int64_t q_group = tokens(problem.queries, {rank}, {Axis::heads});
  const int64_t k_group = tokens(problem.keys, {rank}, {Axis::heads});
  const int64_t q_team = tokens(problem.queries, {rank}, {Axis::team, Axis::heads});
  const int64_t k_stripe = tokens(problem.keys, {rank}, {Axis::stripe, Axis::heads});
  // What visits on the ring before a given hop: the blocks this rank forwards.
  const std::vector<int> ring = line_through(grid, rank, Axis::ring);
  const int at = place_of(grid, rank)[static_cast<int>(Axis::ring)];
  const auto visiting = [&](const Chunks& side, Axis axis, int first, int last) {
    int64_t sum = 0;
    for (int step = first; step <= last; ++step) sum += tokens(side, {ring[(at - step + c) % c]}, {axis, Axis::heads});
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
  const int64_t keys = grid.stripe * problem.keys.total_tokens() * key_heads * 2 * d * (e + p);
  const int64_t queries = grid.team * problem.queries.total_tokens() * query_heads * (2 * (d * e + s) + d * p);
  return grid.ring > 1 && queries < keys ? Pass::backward_queries : Pass::backward_keys;
}

}  // namespace startrail

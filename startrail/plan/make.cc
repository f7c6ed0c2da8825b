#include "startrail/plan/make.h"

#include "startrail/base/error.h"

namespace startrail {
namespace {

// Writes one rank's steps; axes of size 1 leave none.
class Maker {
 public:
  Maker(const Grid& grid, Pass pass, int rank) : grid_(grid), pass_(pass), rank_(rank) {
    slice_ = grid.heads == 1 ? kAllHeads : place_of(grid, rank)[static_cast<int>(Axis::heads)];
    ring_ = line_through(grid, rank, Axis::ring);
    at_ = place_of(grid, rank)[static_cast<int>(Axis::ring)];
    own_ = line_through(grid, rank, Axis::heads);
  }

  Steps make() {
    if (pass_ == Pass::forward) {
      to_heads(Data::query);
      to_heads(Data::keys);
      gather(Data::query, Axis::team);
      gather(Data::keys, Axis::stripe);
      ride(Data::keys);
      merge(Data::out, Axis::team);
      to_tokens(Data::out);
      return steps_;
    }
    to_heads(Data::out_grad);
    steps_.push_back({.op = Op::delta,
                      .in = block(Data::out_grad, own_),
                      .with = block(Data::saved, own_),
                      .out = block(Data::query, own_)});
    gather(Data::query, Axis::team);
    gather(Data::keys, Axis::stripe);
    ride(pass_ == Pass::backward_keys ? Data::keys : Data::query);
    merge(Data::query_grad, Axis::team);
    merge(Data::keys_grad, Axis::stripe);
    to_tokens(Data::query_grad);
    to_tokens(Data::keys_grad);
    return steps_;
  }

 private:
  Block block(Data data, std::vector<int> chunks) const { return {data, std::move(chunks), slice_}; }
  Block home(Data data) const { return {data, {rank_}, kAllHeads}; }

  // The chunks that the line of `axis` through `rank` gathers: each member brings its heads group's.
  std::vector<int> gathered(int rank, Axis axis) const {
    std::vector<int> chunks;
    for (int member : line_through(grid_, rank, axis))
      for (int owner : line_through(grid_, member, Axis::heads)) chunks.push_back(owner);
    return chunks;
  }

  // The ranks of the line of `axis`, each with the chunks that it and its heads group stand for.
  std::vector<Member> members(Axis axis) const {
    std::vector<Member> group;
    for (int rank : line_through(grid_, rank_, axis))
      group.push_back({rank, axis == Axis::heads ? std::vector{rank} : line_through(grid_, rank, Axis::heads)});
    return group;
  }

  void trade(Block in, Block out) {
    if (grid_.heads > 1)
      steps_.push_back(
          {.op = Op::all_to_all, .in = std::move(in), .out = std::move(out), .group = members(Axis::heads)});
  }
  void to_heads(Data data) { trade(home(data), block(data, own_)); }
  void to_tokens(Data data) { trade(block(data, own_), home(data)); }
  void gather(Data data, Axis axis) {
    if (grid_.size(axis) == 1) return;
    steps_.push_back(
        {.op = Op::gather, .in = block(data, own_), .out = block(data, gathered(rank_, axis)), .group = members(axis)});
  }
  void merge(Data data, Axis axis) {
    if (grid_.size(axis) == 1) return;
    steps_.push_back(
        {.op = Op::merge, .in = block(data, gathered(rank_, axis)), .out = block(data, own_), .group = members(axis)});
  }

  // Passes one side around the ring while the other stays; in a backward the riding side's gradient follows one step
  // behind. The owner's own contribution stays at home and the travelling one starts at the first foreign rank, so that
  // it is home after ring - 1 hops.
  void ride(Data data) {
    const bool keys_ride = data == Data::keys;
    const Data grad = keys_ride ? Data::keys_grad : Data::query_grad;
    const Block stays =
        keys_ride ? block(Data::query, gathered(rank_, Axis::team)) : block(Data::keys, gathered(rank_, Axis::stripe));
    const int size = grid_.ring, next = ring_[(at_ + 1) % size], previous = ring_[(at_ + size - 1) % size];
    std::vector<std::vector<int>> chunks;  // of the block of each rank of the ring
    for (int member : ring_) chunks.push_back(gathered(member, keys_ride ? Axis::stripe : Axis::team));
    const auto visitor = [&](Data kind, int step) {  // the block that visits at `step`
      return block(kind, chunks[(at_ + 2 * size - step) % size]);
    };
    const auto exchange = [&](Data kind, int sent, int received) {
      steps_.push_back({.op = Op::exchange,
                        .in = visitor(kind, sent),
                        .out = visitor(kind, received),
                        .to = next,
                        .from = previous});
    };
    const bool backward = pass_ != Pass::forward;
    for (int step = 0; step < size; ++step) {
      if (step + 1 < size) exchange(data, step, step + 1);
      if (backward && step >= 2) exchange(grad, step - 1, step);
      const Block visits = visitor(data, step);
      steps_.push_back({.op = Op::attend, .in = keys_ride ? stays : visits, .with = keys_ride ? visits : stays});
    }
    if (backward && size > 1) exchange(grad, size - 1, size);
  }

  const Grid& grid_;
  Pass pass_;
  int rank_, slice_ = kAllHeads, at_ = 0;
  std::vector<int> ring_, own_;
  Steps steps_;
};

}  // namespace

Steps make_steps(const Grid& grid, Pass pass, int rank) {
  STARTRAIL_CHECK(rank >= 0 && rank < grid.ranks(), "rank ", rank, " of ", grid.ranks());
  return Maker(grid, pass, rank).make();
}

PlanHead plan_head(const Grid& grid, Pass pass) { return {pass, grid.heads, own_chunk_each(grid.ranks())}; }

Plan make_plan(const Grid& grid, Pass pass) {
  Plan plan{plan_head(grid, pass), {}};
  for (int rank = 0; rank < grid.ranks(); ++rank) plan.ranks.push_back(make_steps(grid, pass, rank));
  return plan;
}

}  // namespace startrail

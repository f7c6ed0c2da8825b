#include "startrail/plan/check.h"

#include <algorithm>
#include <bit>
#include <map>
#include <tuple>

#include "startrail/base/error.h"
#include "startrail/plan/text.h"

namespace startrail {
namespace {

// A set of chunks, one bit each.
using Chunks = std::vector<uint64_t>;
bool has(const Chunks& set, int chunk) { return set[chunk / 64] >> (chunk % 64) & 1; }

// A result chunk in one slice of the heads, and which chunks of the other side it has met.
using Met = std::map<std::pair<int, int>, Chunks>;

// Messages from one rank to another of one kind and data are matched in order: the n-th sent is the n-th received.
using Channel = std::tuple<int, int, Op, Data>;

struct Parcel {
  Block block;
  Met met;  // empty for plain data
};

// A posted receive: number `index` on its channel, which must be `block`, lands in `into`.
struct Receive {
  Channel channel;
  size_t index;
  Block block;
  Block into;
};

// One rank: where it is, what it holds, what it still expects.
struct Player {
  size_t at = 0;
  std::map<Block, Met> held;
  std::vector<Receive> posted;
  std::string waiting;  // why it cannot go on
};

class Game {
 public:
  explicit Game(const Plan& plan) : plan_(plan), ranks_(static_cast<int>(plan.ranks.size())), players_(ranks_) {}

  void play() {
    for (int rank = 0; rank < ranks_; ++rank) hold_inputs(rank);
    // Each rank runs as far as it can. Posting never waits, and a channel has one writer and one reader, so the order
    // in which ranks take turns cannot change what any of them reads: if this order ends well, every order does.
    for (bool moved = true; moved;) {
      moved = false;
      for (int rank = 0; rank < ranks_; ++rank)
        for (Player& player = players_[rank]; player.at < plan_.ranks[rank].size() && step(rank); ++player.at)
          moved = true;
    }
    for (int rank = 0; rank < ranks_; ++rank)
      if (players_[rank].at < plan_.ranks[rank].size()) fail(rank, "waits for ever: " + players_[rank].waiting);
    for (int rank = 0; rank < ranks_; ++rank) check_results(rank);
    for (const auto& [channel, parcels] : sent_)
      if (parcels.size() > received_[channel])
        throw UserError(cat("plan is wrong: rank ", std::get<0>(channel), " sends ",
                            to_text(parcels[received_[channel]].block), " to rank ", std::get<1>(channel),
                            ", which never receives it"));
  }

 private:
  [[noreturn]] void fail(int rank, const std::string& what) const {
    const Steps& steps = plan_.ranks[rank];
    const size_t at = players_[rank].at;
    const std::string place = at < steps.size() ? cat("step ", at, " (", to_text(steps[at]), ")") : "its end";
    throw UserError(cat("plan is wrong at rank ", rank, ", ", place, ": ", what));
  }

  void demand(bool holds, int rank, const char* rule) const {
    if (!holds) fail(rank, rule);
  }

  void hold_inputs(int rank) {
    auto& held = players_[rank].held;
    if (plan_.pass == Pass::forward) {
      held[{Data::query, {rank}, kAllHeads}];
      held[{Data::keys, {rank}, kAllHeads}];
      return;
    }
    held[{Data::out_grad, {rank}, kAllHeads}];
    // The forward pass left the keys as its all-to-all brought them: the group's chunks of one slice.
    Block keys{Data::keys, {rank}, kAllHeads};
    for (const Step& step : plan_.ranks[rank])
      if (step.op == Op::all_to_all && step.in.slice == kAllHeads) keys = {Data::keys, step.out.chunks, step.out.slice};
    held[keys];
  }

  void check_block(int rank, const Block& block) const {
    for (int chunk : block.chunks) demand(chunk >= 0 && chunk < ranks_, rank, "it names a chunk that no rank owns");
    demand(block.slice >= kAllHeads && block.slice < plan_.slices, rank,
           "it names a slice of the heads that is not there");
  }

  // Adds what result chunks have met; meeting a chunk twice is the error this whole file exists for.
  void add(int rank, const Block& block, const Met& more) {
    Met& met = players_[rank].held[block];
    for (const auto& [key, others] : more) {
      Chunks& mine = met[key];
      mine.resize(others.size());
      for (size_t word = 0; word < others.size(); ++word) {
        if (const uint64_t twice = mine[word] & others[word])
          fail(rank, cat(to_text(block.data), " of chunk ", key.first, " meets chunk ",
                         64 * word + std::countr_zero(twice), " twice"));
        mine[word] |= others[word];
      }
    }
  }

  // Brings in what was posted into `block`: false while some of it has not been sent. Fails when nothing ever brings
  // it.
  bool ready(int rank, const Block& block) {
    Player& player = players_[rank];
    for (size_t i = 0; i < player.posted.size();) {
      const Receive receive = player.posted[i];
      if (receive.into != block) {
        ++i;
        continue;
      }
      const std::vector<Parcel>& parcels = sent_[receive.channel];
      if (parcels.size() <= receive.index) {
        player.waiting = cat("rank ", std::get<0>(receive.channel), " does not send ", to_text(receive.block));
        return false;
      }
      const Parcel& parcel = parcels[receive.index];
      if (parcel.block != receive.block)
        fail(rank, cat("rank ", std::get<0>(receive.channel), " sends ", to_text(parcel.block), " where ",
                       to_text(receive.block), " is expected"));
      player.posted.erase(player.posted.begin() + i);
      player.held[block];
      add(rank, block, parcel.met);
    }
    if (!player.held.count(block)) fail(rank, cat("reads ", to_text(block), ", which it does not hold"));
    return true;
  }

  void send(int rank, int to, Op op, const Block& block, Met met) {
    demand(to >= 0 && to < ranks_ && to != rank, rank, "it sends to a rank that is not a peer");
    sent_[{rank, to, op, block.data}].push_back({block, std::move(met)});
  }

  void receive(int rank, int from, Op op, const Block& block, const Block& into) {
    demand(from >= 0 && from < ranks_ && from != rank, rank, "it receives from a rank that is not a peer");
    const Channel channel{from, rank, op, block.data};
    players_[rank].posted.push_back({channel, received_[channel]++, block, into});
  }

  // What a block has met; a partial one is given away by this.
  Met take(int rank, const Block& block) {
    auto& held = players_[rank].held;
    Met met = held.at(block);
    if (is_partial(block.data)) held.erase(block);
    return met;
  }

  static Met part_of(const Met& met, const std::vector<int>& chunks) {
    Met part;
    for (const auto& [key, others] : met)
      if (std::find(chunks.begin(), chunks.end(), key.first) != chunks.end()) part[key] = others;
    return part;
  }

  // Takes one step of `rank`; false when it has to wait for another rank.
  bool step(int rank) {
    const Step& step = plan_.ranks[rank][players_[rank].at];
    check_block(rank, step.in);
    check_block(rank, step.out);
    if ((step.op != Op::exchange || sends(step)) && !ready(rank, step.in)) return false;
    switch (step.op) {
      case Op::delta:
        delta(rank, step);
        return true;
      case Op::exchange:
        exchange(rank, step);
        return true;
      case Op::attend:
        return attend(rank, step);
      case Op::gather:
        gather(rank, step);
        return true;
      case Op::merge:
        merge(rank, step);
        return true;
      case Op::all_to_all:
        all_to_all(rank, step);
        return true;
    }
    return false;
  }

  void delta(int rank, const Step& step) {
    demand(step.in.data == Data::out_grad && step.out == Block{Data::query, step.in.chunks, step.in.slice}, rank,
           "delta turns out_grad into the query block of the same chunks");
    players_[rank].held[step.out];
  }

  void exchange(int rank, const Step& step) {
    if (sends(step)) send(rank, step.to, step.op, step.in, take(rank, step.in));
    if (receives(step)) receive(rank, step.from, step.op, step.out, step.out);
  }

  bool attend(int rank, const Step& step) {
    demand(step.in.data == Data::query && step.out.data == Data::keys, rank, "attend reads queries and keys");
    demand(step.in.slice == step.out.slice, rank, "attend reads two slices of the heads");
    if (!ready(rank, step.out)) return false;
    const auto meet = [&](const Block& result, const std::vector<int>& others) {
      Chunks met((ranks_ + 63) / 64);
      for (int other : others) met[other / 64] |= uint64_t{1} << (other % 64);
      Met more;
      for (int chunk : result.chunks) more[{chunk, result.slice}] = met;
      add(rank, result, more);
    };
    if (plan_.pass == Pass::forward) {
      meet(out_of(step), step.out.chunks);
    } else {
      meet(query_grad_of(step), step.out.chunks);
      meet(keys_grad_of(step), step.in.chunks);
    }
    return true;
  }

  // The rank's index in the group of a step whose `whole` block is shared out over it.
  size_t place_in(int rank, const Step& step, const Block& whole) const {
    const auto found = std::find(step.group.begin(), step.group.end(), rank);
    demand(found != step.group.end(), rank, "the rank is not in its own group");
    demand(whole.chunks.size() % step.group.size() == 0, rank, "the chunks do not divide over the group");
    return found - step.group.begin();
  }

  void gather(int rank, const Step& step) {
    const size_t place = place_in(rank, step, step.out), size = step.group.size();
    demand(!is_partial(step.in.data), rank, "partial results are merged, not gathered");
    demand(step.in == Block{step.out.data, share_of(step.out.chunks, size, place), step.out.slice}, rank,
           "a gather puts the own block at the own place of the group");
    for (size_t i = 0; i < size; ++i) {
      if (i == place) continue;
      send(rank, step.group[i], step.op, step.in, {});
      receive(rank, step.group[i], step.op, {step.out.data, share_of(step.out.chunks, size, i), step.out.slice},
              step.out);
    }
  }

  void merge(int rank, const Step& step) {
    const size_t place = place_in(rank, step, step.in), size = step.group.size();
    demand(is_partial(step.in.data), rank, "only partial results are merged");
    demand(step.out == Block{step.in.data, share_of(step.in.chunks, size, place), step.in.slice}, rank,
           "a merge keeps the share at the own place of the group");
    const Met whole = take(rank, step.in);
    for (size_t i = 0; i < size; ++i) {
      const Block share{step.in.data, share_of(step.in.chunks, size, i), step.in.slice};
      if (i == place) {
        add(rank, step.out, part_of(whole, share.chunks));
      } else {
        send(rank, step.group[i], step.op, share, part_of(whole, share.chunks));
        receive(rank, step.group[i], step.op, step.out, step.out);
      }
    }
  }

  void all_to_all(int rank, const Step& step) {
    const bool to_heads = step.in.slice == kAllHeads;
    const Block& slice = to_heads ? step.out : step.in;  // the group's chunks, one slice
    const Block& whole = to_heads ? step.in : step.out;  // the own chunk, all slices
    const int place = static_cast<int>(place_in(rank, step, slice)), size = static_cast<int>(step.group.size());
    demand(size == plan_.slices && step.in.data == step.out.data && slice.chunks == step.group &&
               slice.slice == place && whole.chunks == std::vector<int>{rank} && whole.slice == kAllHeads,
           rank, "an all-to-all trades the own chunk of all heads for the group's chunks of the own slice");
    const Met met = take(rank, step.in);
    for (int i = 0; i < size; ++i) {
      const int peer = step.group[i];
      const Block sent{step.in.data, {to_heads ? rank : peer}, to_heads ? i : place};
      const Block got{step.in.data, {to_heads ? peer : rank}, to_heads ? place : i};
      if (i == place) {
        players_[rank].held[step.out];
        add(rank, step.out, part_of(met, sent.chunks));
      } else {
        send(rank, peer, step.op, sent, part_of(met, sent.chunks));
        receive(rank, peer, step.op, got, step.out);
      }
    }
  }

  void check_results(int rank) {
    const bool forward = plan_.pass == Pass::forward;
    for (Data data : forward ? std::vector<Data>{Data::out} : std::vector<Data>{Data::query_grad, Data::keys_grad}) {
      const Block result{data, {rank}, kAllHeads};
      if (!ready(rank, result)) fail(rank, "waits for ever: " + players_[rank].waiting);
      const Met& met = players_[rank].held.at(result);
      for (int i = 0; i < plan_.slices; ++i) {
        const auto found = met.find({rank, plan_.slices == 1 ? kAllHeads : i});
        for (int other = 0; other < ranks_; ++other)
          if (found == met.end() || !has(found->second, other))
            fail(rank, cat(to_text(data), " of chunk ", rank, " never meets chunk ", other,
                           plan_.slices == 1 ? "" : cat(" in slice ", i)));
      }
    }
    if (!players_[rank].posted.empty())
      fail(rank, cat("receives ", to_text(players_[rank].posted.front().block), ", which nothing reads"));
  }

  const Plan& plan_;
  int ranks_;
  std::vector<Player> players_;
  std::map<Channel, std::vector<Parcel>> sent_;
  std::map<Channel, size_t> received_;
};

}  // namespace

void check_plan(const Plan& plan) { Game(plan).play(); }

void check_volume(const Plan& plan, const Grid& grid, const Problem& problem) {
  for (int rank = 0; rank < grid.ranks(); ++rank) {
    const Volume counted = count_volume(plan, rank, problem);
    const Volume formula = formula_volume(grid, plan.pass, rank, problem);
    for (Traffic kind : kTraffic)
      if (counted[kind] != formula[kind])
        throw UserError(cat("plan is wrong at rank ", rank, ": it sends ", counted[kind], " bytes of ", to_text(kind),
                            ", but the formula for ", to_text(grid), " says ", formula[kind]));
  }
}

}  // namespace startrail

#include "startrail/plan/check.h"

#include <algorithm>
#include <bit>
#include <map>
#include <tuple>
#include <utility>

#include "startrail/base/error.h"
#include "startrail/plan/text.h"

namespace startrail {
namespace {

// Which chunks of the other side a partial result has met: a row of bits for each chunk and slice of the heads it
// holds. Plain data has no rows.
using Met = std::vector<uint64_t>;

struct Parcel {
  Block block;
  Met met;
};

// Messages from one rank to another of one kind and data are matched in order: the n-th sent is the n-th received.
using Channel = std::tuple<int, int, Op, Data>;
struct Mail {
  std::vector<Parcel> sent;
  size_t posted = 0;  // receives
};

// A posted receive: number `index` from a rank, which must be `block` and lands at a row of the slot it belongs to.
struct Receive {
  const Mail* mail;
  size_t index;
  int from;
  Block block;
  size_t row;
};

// What a rank has under a block's name, and what is still on its way there.
struct Slot {
  bool held = false;
  Met met;
  std::vector<Receive> incoming;
};

struct Player {
  size_t at = 0;  // its next step
  std::map<Block, Slot> slots;
  Block saved;  // backward: the query block that delta forms from what the forward left, until it did
  const Receive* waiting = nullptr;  // why it cannot go on
};

class Game {
 public:
  explicit Game(const Plan& plan)
      : plan_(plan), ranks_(static_cast<int>(plan.ranks.size())), words_((ranks_ + 63) / 64), players_(ranks_) {}

  void play() {
    if (ranks_ < 1 || plan_.slices < 1)
      throw UserError(cat("plan is wrong: it has ", ranks_, " ranks and ", plan_.slices,
                          " slices of the heads: there must be 1 or more of each"));
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
      if (players_[rank].at < plan_.ranks[rank].size()) fail_waiting(rank);
    for (int rank = 0; rank < ranks_; ++rank) check_end(rank);
    for (const auto& [channel, mail] : mail_)
      if (mail.sent.size() > mail.posted)
        throw UserError(cat("plan is wrong: rank ", std::get<0>(channel), " sends ",
                            to_text(mail.sent[mail.posted].block), " to rank ", std::get<1>(channel),
                            ", which never receives it"));
  }

 private:
  [[noreturn]] void fail(int rank, const std::string& what) const {
    const Steps& steps = plan_.ranks[rank];
    const size_t at = players_[rank].at;
    const std::string place = at < steps.size() ? cat("step ", at, " (", to_text(steps[at]), ")") : "its end";
    throw UserError(cat("plan is wrong at rank ", rank, ", ", place, ": ", what));
  }

  [[noreturn]] void fail_waiting(int rank) const {
    const Receive& receive = *players_[rank].waiting;
    fail(rank, cat("waits for ever: rank ", receive.from, " does not send ", to_text(receive.block)));
  }

  void demand(bool holds, int rank, const char* rule) const {
    if (!holds) fail(rank, rule);
  }

  // Slices of the heads that a block holds.
  size_t slices_of(const Block& block) const { return block.slice == kAllHeads ? plan_.slices : 1; }

  void hold_inputs(int rank) {
    Player& player = players_[rank];
    Block home{Data::keys, {rank}, kAllHeads};
    if (plan_.pass == Pass::forward) {
      player.slots[{Data::query, {rank}, kAllHeads}].held = true;
    } else {
      player.slots[{Data::out_grad, {rank}, kAllHeads}].held = true;
      // The forward left what its all-to-all brought: the group's chunks of one slice.
      for (const Step& step : plan_.ranks[rank])
        if (step.op == Op::all_to_all && step.in.slice == kAllHeads) home = step.out;
      player.saved = {Data::query, home.chunks, home.slice};
    }
    player.slots[{Data::keys, home.chunks, home.slice}].held = true;
  }

  void check_block(int rank, const Block& block) const {
    demand(!block.chunks.empty(), rank, "it names a block without chunks");
    std::vector<bool> named(ranks_);
    for (int chunk : block.chunks) {
      demand(chunk >= 0 && chunk < ranks_, rank, "it names a chunk that no rank owns");
      demand(!named[chunk], rank, "it names a chunk twice in one block");
      named[chunk] = true;
    }
    demand(block.slice >= kAllHeads && block.slice < plan_.slices, rank,
           "it names a slice of the heads that is not there");
  }

  // Adds rows of what has been met, from `row` on; meeting a chunk twice is the error this whole file exists for.
  void add(int rank, const Block& block, Slot& slot, const Met& more, size_t row = 0) {
    slot.held = true;
    if (more.empty()) return;
    slot.met.resize(block.chunks.size() * slices_of(block) * words_);
    for (size_t i = 0; i < more.size(); ++i) {
      uint64_t& mine = slot.met[row * words_ + i];
      if (const uint64_t twice = mine & more[i])
        fail(rank, cat(to_text(block.data), " of chunk ", block.chunks[(row + i / words_) / slices_of(block)],
                       " meets chunk ", 64 * (i % words_) + std::countr_zero(twice), " twice"));
      mine |= more[i];
    }
  }

  // Brings in what is on its way to `block`: false while some of it has not been sent. Fails when nothing ever brings
  // it.
  bool ready(int rank, const Block& block) {
    Slot& slot = players_[rank].slots[block];
    for (const Receive& receive : slot.incoming)
      if (receive.mail->sent.size() <= receive.index) {
        players_[rank].waiting = &receive;
        return false;
      }
    for (const Receive& receive : slot.incoming) {
      const Parcel& parcel = receive.mail->sent[receive.index];
      if (parcel.block != receive.block)
        fail(rank, cat("rank ", receive.from, " sends ", to_text(parcel.block), " where ", to_text(receive.block),
                       " is expected"));
      add(rank, block, slot, parcel.met, receive.row);
    }
    slot.incoming.clear();
    if (!slot.held) fail(rank, cat("reads ", to_text(block), ", which it does not hold"));
    return true;
  }

  void send(int rank, int to, Op op, Block block, Met met) {
    demand(to >= 0 && to < ranks_ && to != rank, rank, "it sends to a rank that is not a peer");
    mail_[{rank, to, op, block.data}].sent.push_back({std::move(block), std::move(met)});
  }

  // Expects `block`, to land in the slot of `into` from `row` on.
  void receive(int rank, int from, Op op, Block block, const Block& into, size_t row = 0) {
    demand(from >= 0 && from < ranks_ && from != rank, rank, "it receives from a rank that is not a peer");
    Mail& mail = mail_[{from, rank, op, block.data}];
    players_[rank].slots[into].incoming.push_back({&mail, mail.posted++, from, std::move(block), row});
  }

  // What a block has met; a partial one is given away by this.
  Met take(int rank, const Block& block) {
    Slot& slot = players_[rank].slots[block];
    if (is_partial(block.data)) slot.held = false;
    return std::exchange(slot.met, {});
  }

  // Part `index` of `parts` equal ones.
  static Met part_of(const Met& met, size_t parts, size_t index) {
    const size_t size = met.size() / parts;
    return {met.begin() + index * size, met.begin() + (index + 1) * size};
  }

  // Takes one step of `rank`; false when it has to wait for another rank.
  bool step(int rank) {
    const Step& step = plan_.ranks[rank][players_[rank].at];
    const bool exchanges = step.op == Op::exchange;
    if (!exchanges || sends(step)) check_block(rank, step.in);
    if (!exchanges || receives(step)) check_block(rank, step.out);
    if ((!exchanges || sends(step)) && !ready(rank, step.in)) return false;
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
    demand(step.out == players_[rank].saved, rank,
           "delta is taken once, of the chunks whose out the forward left here");
    players_[rank].saved = {};
    players_[rank].slots[step.out].held = true;
  }

  void exchange(int rank, const Step& step) {
    demand(sends(step) || receives(step), rank, "an exchange sends or receives");
    demand(!sends(step) || !receives(step) || step.in.data == step.out.data, rank,
           "an exchange sends and receives the same kind of data");
    if (sends(step)) send(rank, step.to, step.op, step.in, take(rank, step.in));
    if (receives(step)) receive(rank, step.from, step.op, step.out, step.out);
  }

  bool attend(int rank, const Step& step) {
    demand(step.in.data == Data::query && step.out.data == Data::keys, rank, "attend reads queries and keys");
    demand(step.in.slice == step.out.slice, rank, "attend reads two slices of the heads");
    if (!ready(rank, step.out)) return false;
    const auto meet = [&](const Block& result, const std::vector<int>& others) {
      const size_t rows = result.chunks.size() * slices_of(result);
      Met met(rows * words_);
      for (size_t row = 0; row < rows; ++row)
        for (int other : others) met[row * words_ + other / 64] |= uint64_t{1} << (other % 64);
      add(rank, result, players_[rank].slots[result], met);
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
    players_[rank].slots[step.out].held = true;
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
    const Met met = take(rank, step.in);
    add(rank, step.out, players_[rank].slots[step.out], part_of(met, size, place));
    for (size_t i = 0; i < size; ++i) {
      if (i == place) continue;
      send(rank, step.group[i], step.op, {step.in.data, share_of(step.in.chunks, size, i), step.in.slice},
           part_of(met, size, i));
      receive(rank, step.group[i], step.op, step.out, step.out);
    }
  }

  // A transpose in either direction: row i goes to member i, and what member i sends becomes row i.
  void all_to_all(int rank, const Step& step) {
    const bool to_heads = step.in.slice == kAllHeads;
    const Block& slice = to_heads ? step.out : step.in;  // the group's chunks, one slice
    const Block& whole = to_heads ? step.in : step.out;  // the own chunk, all slices
    const int place = static_cast<int>(place_in(rank, step, slice)), size = static_cast<int>(step.group.size());
    demand(size == plan_.slices && step.in.data == step.out.data && slice.chunks == step.group &&
               slice.slice == place && whole.chunks == std::vector<int>{rank} && whole.slice == kAllHeads,
           rank, "an all-to-all trades the own chunk of all heads for the group's chunks of the own slice");
    const Met met = take(rank, step.in);
    add(rank, step.out, players_[rank].slots[step.out], part_of(met, size, place), place);
    for (int i = 0; i < size; ++i) {
      const int peer = step.group[i];
      if (i == place) continue;
      const Data data = step.in.data;
      send(rank, peer, step.op, {data, {to_heads ? rank : peer}, to_heads ? i : place}, part_of(met, size, i));
      receive(rank, peer, step.op, {data, {to_heads ? peer : rank}, to_heads ? place : i}, step.out, i);
    }
  }

  // At its end a rank has its own finished results, and nothing is left that someone should have read.
  void check_end(int rank) {
    const bool forward = plan_.pass == Pass::forward;
    for (Data data : forward ? std::vector{Data::out} : std::vector{Data::query_grad, Data::keys_grad}) {
      const Block result{data, {rank}, kAllHeads};
      if (!ready(rank, result)) fail_waiting(rank);
      Met met = take(rank, result);
      for (int slice = 0; slice < plan_.slices; ++slice)
        for (int other = 0; other < ranks_; ++other)
          if (!(met[slice * words_ + other / 64] >> (other % 64) & 1))
            fail(rank, cat(to_text(data), " of chunk ", rank, " never meets chunk ", other,
                           plan_.slices == 1 ? "" : cat(" in slice ", slice)));
    }
    for (const auto& [block, slot] : players_[rank].slots) {
      if (!slot.incoming.empty())
        fail(rank, cat("receives ", to_text(slot.incoming.front().block), ", which nothing reads"));
      if (slot.held && is_partial(block.data))
        fail(rank, cat("keeps ", to_text(block), ", a partial result that nobody merges"));
    }
  }

  const Plan& plan_;
  int ranks_;
  size_t words_;  // of 64 chunks, in a row
  std::vector<Player> players_;
  std::map<Channel, Mail> mail_;
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

#include "startrail/plan/check.h"

#include <algorithm>
#include <bit>
#include <deque>
#include <map>
#include <tuple>
#include <utility>

#include "startrail/base/error.h"
#include "startrail/plan/text.h"

namespace startrail {
namespace {

[[noreturn]] void fail(const Plan& plan, int rank, size_t step, const std::string& what) {
  throw UserError(cat(place_text(plan.ranks[rank], rank, step), what));
}

[[noreturn]] void fail_unexpected(const Plan& plan, int rank, size_t step, int from, const Block& sent,
                                  const Block& expected) {
  fail(plan, rank, step, cat("rank ", from, " sends ", to_text(sent), " where ", to_text(expected), " is expected"));
}

[[noreturn]] void fail_leftover(int from, int to, const Block& block) {
  throw UserError(
      cat("plan is wrong: rank ", from, " sends ", to_text(block), " to rank ", to, ", which never receives it"));
}

std::vector<Play> play_all(const Plan& plan) {
  const int ranks = static_cast<int>(plan.ranks.size());
  if (ranks < 1 || plan.slices < 1)
    throw UserError(cat("plan is wrong: it has ", ranks, " ranks and ", plan.slices,
                        " slices of the heads: there must be 1 or more of each"));
  for (int owner : plan.owners)
    if (owner < 0 || owner >= ranks)
      throw UserError(cat("plan is wrong: rank ", owner, " owns a chunk, but there are ", ranks, " ranks"));
  std::vector<Play> plays;
  for (int rank = 0; rank < ranks; ++rank) {
    const Steps& steps = plan.ranks[rank];
    for (size_t i = 0; i < steps.size(); ++i) {
      if (steps[i].to >= ranks) fail(plan, rank, i, "it sends to a rank that is not a peer");
      if (steps[i].from >= ranks) fail(plan, rank, i, "it receives from a rank that is not a peer");
      for (const Member& member : steps[i].group)
        if (member.rank < 0 || member.rank >= ranks) fail(plan, rank, i, "its group has a rank that is not there");
    }
    plays.push_back(play_rank(plan, rank));
  }
  return plays;
}

// Which chunks of the other side a partial result has met: a row of bits for each chunk and slice of the heads it
// holds. Plain data has no rows.
using Met = std::vector<uint64_t>;

// Plays all ranks. What one rank's steps read, add and send is known from its Play; here are the others' messages.
class Game {
 public:
  Game(const Plan& plan, const std::vector<Play>& plays)
      : plan_(plan), plays_(plays), words_((plan.chunks() + 63) / 64) {
    for (const Play& play : plays) {
      Player player;
      player.met.resize(play.buffers.size());
      player.arrivals.resize(play.arrivals.size());
      players_.push_back(std::move(player));
    }
  }

  void play() {
    // Each rank runs as far as it can. Posting never waits, and a channel has one writer and one reader, so the order
    // in which ranks take turns cannot change what any of them reads: if this order ends well, every order does.
    const int ranks = static_cast<int>(plays_.size());
    for (bool moved = true; moved;) {
      moved = false;
      for (int rank = 0; rank < ranks; ++rank)
        for (Player& player = players_[rank]; player.at < plays_[rank].actions.size() && act(rank); ++player.at)
          moved = true;
    }
    for (int rank = 0; rank < ranks; ++rank)
      if (players_[rank].at < plays_[rank].actions.size()) fail_waiting(rank);
    for (int rank = 0; rank < ranks; ++rank) check_end(rank);
    for (const auto& [channel, mail] : mail_)
      if (mail.sent.size() > mail.posted)
        fail_leftover(std::get<0>(channel), std::get<1>(channel), mail.sent[mail.posted].block);
  }

 private:
  struct Parcel {
    Block block;
    Met met;
  };
  // Messages from one rank to another of one kind and data are matched in order: the n-th sent is the n-th received.
  using Channel = std::tuple<int, int, Traffic, Data>;
  struct Mail {
    std::vector<Parcel> sent;
    size_t posted = 0;  // receives
  };
  struct Waiting {
    const Mail* mail;
    size_t index;  // in the channel
    int receive;   // in the action
  };
  // What an arrival waits for, and what the rank itself adds to it.
  struct Coming {
    std::vector<Waiting> messages;
    Met own;
  };
  struct Player {
    size_t at = 0;         // its next step
    std::vector<Met> met;  // of its buffers
    std::vector<Coming> arrivals;
    const Waiting* waiting = nullptr;  // why it cannot go on
    size_t waiting_action = 0;
  };

  [[noreturn]] void fail_waiting(int rank) const {
    const Player& player = players_[rank];
    const Message& message = plays_[rank].actions[player.waiting_action].receives[player.waiting->receive];
    fail(plan_, rank, player.at, cat("waits for ever: rank ", message.peer, " does not send ", to_text(message.block)));
  }

  // Slices of the heads that a block holds.
  size_t slices_of(const Block& block) const { return block.slice == kAllHeads ? plan_.slices : 1; }

  // Calls `visit` with every row of a part, in its order.
  template <class Visit>
  void each_row(int rank, const Part& part, const Visit& visit) const {
    const size_t slices = slices_of(plays_[rank].buffers[part.buffer]);
    for (const Run& run : part.runs)
      for (int place = run.first; place < run.first + run.count; ++place)
        for (size_t slice = 0; slice < slices; ++slice)
          if (part.slice == kAllHeads || part.slice == static_cast<int>(slice)) visit(place * slices + slice);
  }

  bool has_rows(int rank, const Part& part) const { return is_partial(plays_[rank].buffers[part.buffer].data); }

  Met& rows(int rank, int buffer) {
    Met& met = players_[rank].met[buffer];
    const Block& block = plays_[rank].buffers[buffer];
    if (met.empty()) met.resize(block.chunks.size() * slices_of(block) * words_);
    return met;
  }

  // Adds what has been met, row after row; meeting a chunk twice is the error this whole file exists for.
  void add(int rank, const Part& part, const Met& more) {
    Met& met = rows(rank, part.buffer);
    const Block& block = plays_[rank].buffers[part.buffer];
    size_t next = 0;
    each_row(rank, part, [&](size_t row) {
      for (size_t word = 0; word < words_; ++word, ++next) {
        uint64_t& mine = met[row * words_ + word];
        if (const uint64_t twice = mine & more[next])
          fail(plan_, rank, players_[rank].at,
               cat(to_text(block.data), " of chunk ", block.chunks[row / slices_of(block)], " meets chunk ",
                   64 * word + std::countr_zero(twice), " twice"));
        mine |= more[next];
      }
    });
  }

  // What a part has met, which it loses by that: it is given away.
  Met take(int rank, const Part& part) {
    Met taken;
    if (!has_rows(rank, part)) return taken;
    Met& met = rows(rank, part.buffer);
    each_row(rank, part, [&](size_t row) {
      for (size_t word = 0; word < words_; ++word) taken.push_back(std::exchange(met[row * words_ + word], 0));
    });
    return taken;
  }

  // False while some of an arrival has not been sent.
  bool has_come(int rank, int id) {
    Player& player = players_[rank];
    for (const Waiting& waiting : player.arrivals[id].messages)
      if (waiting.mail->sent.size() <= waiting.index) {
        player.waiting = &waiting;
        player.waiting_action = plays_[rank].arrivals[id].action;
        return false;
      }
    return true;
  }

  // Joins an arrival with what is there.
  void settle(int rank, int id) {
    const Arrival& arrival = plays_[rank].arrivals[id];
    const Coming& coming = players_[rank].arrivals[id];
    for (const Waiting& waiting : coming.messages) {
      const Block& sent = waiting.mail->sent[waiting.index].block;
      const Message& expected = plays_[rank].actions[arrival.action].receives[waiting.receive];
      if (sent != expected.block) fail_unexpected(plan_, rank, players_[rank].at, expected.peer, sent, expected.block);
    }
    auto message = coming.messages.begin();
    for (const Ingredient& ingredient : arrival.ingredients) {
      Part into = arrival.into;
      into.slice = ingredient.slice;
      add(rank, into, ingredient.receive < 0 ? coming.own : message->mail->sent[message->index].met);
      if (ingredient.receive >= 0) ++message;
    }
  }

  // Takes one step of `rank`; false when it has to wait for another rank.
  bool act(int rank) {
    Player& player = players_[rank];
    const Action& action = plays_[rank].actions[player.at];
    for (int id : action.waits)
      if (!has_come(rank, id)) return false;
    for (int id : action.waits) settle(rank, id);
    // The two sides of an attend meet: what is added to for the first has met the second, and the other way round.
    for (size_t i = 0; i < action.adds.size(); ++i) meet(rank, action.adds[i], action.reads[1 - i]);
    for (const Message& message : action.sends)
      mail_[{rank, message.peer, message.kind, message.block.data}].sent.push_back(
          {message.block, take(rank, message.part)});
    for (int id : action.arrivals) {
      Coming& coming = player.arrivals[id];
      for (const Ingredient& ingredient : plays_[rank].arrivals[id].ingredients)
        if (ingredient.receive < 0) coming.own = take(rank, ingredient.part);
      for (int receive : plays_[rank].arrivals[id].receives) {
        const Message& message = action.receives[receive];
        Mail& mail = mail_[{message.peer, rank, message.kind, message.block.data}];
        coming.messages.push_back({&mail, mail.posted++, receive});
      }
    }
    return true;
  }

  void meet(int rank, const Part& result, const Part& others) {
    Met row(words_), met;
    const std::vector<int>& table = plays_[rank].buffers[others.buffer].chunks;
    for (const Run& run : others.runs)
      for (int place = run.first; place < run.first + run.count; ++place)
        row[table[place] / 64] |= uint64_t{1} << (table[place] % 64);
    each_row(rank, result, [&](size_t) { met.insert(met.end(), row.begin(), row.end()); });
    add(rank, result, met);
  }

  // At its end a rank has its own finished results.
  void check_end(int rank) {
    for (int id : plays_[rank].last_waits) {
      if (!has_come(rank, id)) fail_waiting(rank);
      settle(rank, id);
    }
    for (const Part& result : plays_[rank].results) {
      const Block& block = plays_[rank].buffers[result.buffer];
      const Met& met = rows(rank, result.buffer);
      each_row(rank, result, [&](size_t row) {
        for (int other = 0; other < plan_.chunks(); ++other)
          if (!(met[row * words_ + other / 64] >> (other % 64) & 1))
            fail(plan_, rank, players_[rank].at,
                 cat(to_text(block.data), " of chunk ", block.chunks[row / slices_of(block)], " never meets chunk ",
                     other, plan_.slices == 1 ? "" : cat(" in slice ", row % slices_of(block))));
      });
    }
  }

  const Plan& plan_;
  const std::vector<Play>& plays_;
  size_t words_;  // of 64 chunks, in a row
  std::vector<Player> players_;
  std::map<Channel, Mail> mail_;
};

// Plays only the messages, each rank's groups in order.
class Queues {
 public:
  Queues(const Plan& plan, const std::vector<Play>& plays, Posting posting) : plan_(plan), queues_(plays.size()) {
    for (const Play& play : plays)
      for (size_t step = 0; step < play.actions.size(); ++step) {
        const Action& action = play.actions[step];
        Group group{step, {}};
        const auto post = [&](const Message& message, bool sends) {
          group.posts.push_back({&message, sends});
          if (posting == Posting::singly) queues_[play.rank].groups.push_back(std::exchange(group, {step, {}}));
        };
        for (const Message& message : action.sends) post(message, true);
        for (const Message& message : action.receives) post(message, false);
        if (!group.posts.empty()) queues_[play.rank].groups.push_back(std::move(group));
      }
  }

  void play() {
    std::vector<int> ready;  // ranks whose next group may begin
    for (int rank = 0; rank < static_cast<int>(queues_.size()); ++rank) ready.push_back(rank);
    while (!ready.empty()) {
      const int rank = ready.back();
      ready.pop_back();
      Queue& queue = queues_[rank];
      if (queue.at == queue.groups.size()) continue;
      const Group& group = queue.groups[queue.at];
      queue.open = group.posts.size();
      for (const Post& post : group.posts) begin(rank, group.step, post, ready);
    }
    for (int rank = 0; rank < static_cast<int>(queues_.size()); ++rank)
      if (const Queue& queue = queues_[rank]; queue.at < queue.groups.size()) fail_stuck(rank, queue);
  }

 private:
  struct Post {
    const Message* message;
    bool sends;
  };
  struct Group {
    size_t step;
    std::vector<Post> posts;
  };
  struct Queue {
    std::vector<Group> groups;
    size_t at = 0, open = 0;  // the group under way, and its messages that have not met their partner
  };
  // Posted and not yet met, in order; at most one side has entries.
  struct Pair {
    std::deque<const Message*> sent, expected;
  };

  void begin(int rank, size_t step, const Post& post, std::vector<int>& ready) {
    const Message& mine = *post.message;
    Pair& pair = post.sends ? pairs_[{rank, mine.peer}] : pairs_[{mine.peer, rank}];
    auto& others = post.sends ? pair.expected : pair.sent;
    if (others.empty()) {
      (post.sends ? pair.sent : pair.expected).push_back(&mine);
      return;
    }
    const Message& theirs = *others.front();
    others.pop_front();
    if (mine.block != theirs.block || mine.kind != theirs.kind)
      fail(plan_, rank, step,
           cat("without tags it would ", post.sends ? "send " : "receive ", to_text(mine.block), " where rank ",
               mine.peer, post.sends ? " expects " : " sends ", to_text(theirs.block)));
    for (int one : {rank, mine.peer})
      if (--queues_[one].open == 0) {
        ++queues_[one].at;
        ready.push_back(one);
      }
  }

  [[noreturn]] void fail_stuck(int rank, const Queue& queue) const {
    const Group& group = queue.groups[queue.at];
    for (const Post& post : group.posts) {
      const Message& message = *post.message;
      const auto pair = pairs_.find(post.sends ? std::pair{rank, message.peer} : std::pair{message.peer, rank});
      const auto& waiting = post.sends ? pair->second.sent : pair->second.expected;
      if (std::find(waiting.begin(), waiting.end(), &message) != waiting.end())
        fail(plan_, rank, group.step,
             cat("without tags it waits for ever for rank ", message.peer, " to ", post.sends ? "receive " : "send ",
                 to_text(message.block)));
    }
    throw InternalError("a group waits for nothing");
  }

  const Plan& plan_;
  std::vector<Queue> queues_;
  std::map<std::pair<int, int>, Pair> pairs_;  // (from, to)
};

}  // namespace

void check_plan(const Plan& plan) {
  const std::vector<Play> plays = play_all(plan);
  Game(plan, plays).play();
  Queues(plan, plays, Posting::together).play();
}

void check_order(const Plan& plan, Posting posting) { Queues(plan, play_all(plan), posting).play(); }

void check_volume(const Plan& plan, const Grid& grid, const std::vector<Problem>& problems) {
  for (int rank = 0; rank < grid.ranks(); ++rank) {
    const Play play = play_rank(plan, rank);
    for (const Problem& problem : problems) {
      const Volume counted = count_volume(plan, play, problem);
      const Volume formula = formula_volume(grid, plan.pass, rank, problem);
      for (Traffic kind : kTraffic)
        if (counted[kind] != formula[kind])
          throw UserError(cat("plan is wrong at rank ", rank, ": it sends ", counted[kind], " bytes of ", to_text(kind),
                              ", but the formula for ", to_text(grid), " says ", formula[kind]));
    }
  }
}

}  // namespace startrail

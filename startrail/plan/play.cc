#include "startrail/plan/play.h"

#include <algorithm>
#include <map>
#include <tuple>

#include "startrail/base/error.h"
#include "startrail/plan/holdings.h"
#include "startrail/plan/text.h"

namespace startrail {
namespace {

bool overlap(const std::vector<Run>& a, const std::vector<Run>& b) {
  for (const Run& x : a)
    for (const Run& y : b)
      if (x.first < y.first + y.count && y.first < x.first + x.count) return true;
  return false;
}

std::vector<int> all_chunks(const std::vector<Member>& group) {
  std::vector<int> chunks;
  for (const Member& member : group) chunks.insert(chunks.end(), member.chunks.begin(), member.chunks.end());
  return chunks;
}

class Player {
 public:
  Player(const PlanHead& head, const Steps& steps, int rank) : head_(head), steps_(steps), named_(head.chunks(), 0) {
    play_.rank = rank;
  }

  Play play(const std::vector<Block>& results) {
    play_.actions.resize(steps_.size());
    for (const Block& block : inputs_of(head_, steps_, play_.rank)) {
      const Part input = held_.whole(held_.make(block));
      play_.inputs.push_back(input.buffer);
      held_.state(input).made = true;
      held_.hold(input);
    }
    for (; at_ < steps_.size(); ++at_) step(steps_[at_]);
    for (const Block& block : results) {
      play_.results.push_back(found(block));
      settle(play_.results.back(), play_.last_waits);
    }
    check_end();
    set_lifetimes();
    return std::move(play_);
  }

 private:
  Action& action() { return play_.actions[at_]; }
  [[noreturn]] void fail(const std::string& what) const {
    throw UserError(cat(place_text(steps_, play_.rank, at_), what));
  }
  void demand(bool holds, const char* rule) const {
    if (!holds) fail(rule);
  }

  void check_block(const Block& block, bool may_be_empty = false) {
    demand(may_be_empty || !block.chunks.empty(), "it names a block without chunks");
    ++stamp_;
    for (int chunk : block.chunks) {
      demand(chunk >= 0 && chunk < head_.chunks(), "it names a chunk that no rank owns");
      demand(named_[chunk] != stamp_, "it names a chunk twice in one block");
      named_[chunk] = stamp_;
    }
    demand(block.slice >= kAllHeads && block.slice < head_.slices, "it names a slice of the heads that is not there");
  }

  void make_now(const Part& whole) {
    held_.state(whole).made = true;
    action().makes.push_back(whole.buffer);
  }
  void use(const Part& part) { held_.state(part).last_use = at_; }
  // A buffer for all of a block.
  Part make_whole(const Block& block) {
    const Part part = held_.whole(held_.make(block));
    make_now(part);
    use(part);
    return part;
  }
  Part found(const Block& block) const {
    if (const auto part = held_.find(block)) return *part;
    fail(cat("reads ", to_text(block), ", which it does not hold"));
  }
  Part result_part(const Block& block, const std::vector<int>& table) {
    if (const auto part = held_.find_room(block, table)) return *part;
    fail(cat("adds to ", to_text(block), ", of which it holds only some in one place"));
  }

  // --- Reading, and what is on its way

  // Waits for what is on its way to a part.
  void settle(const Part& part, std::vector<int>& waits) {
    std::erase_if(held_.state(part).arriving, [&](int id) {
      Arrival& arrival = play_.arrivals[id];
      if (!overlap(arrival.into.runs, part.runs)) return false;
      waits.push_back(id);
      held_.state(part).made = true;
      arrival.ends = steps_[arrival.action].op != Op::exchange && --open_[arrival.action] == 0;
      return true;
    });
  }
  Part read(const Block& block) {
    const Part part = found(block);
    settle(part, action().waits);
    use(part);
    action().reads.push_back(part);
    return part;
  }
  void send(int to, Traffic kind, Block block, Part part) {
    demand(to >= 0 && to != play_.rank, "it sends to a rank that is not a peer");
    demand(block.data != Data::saved, "what the forward saved stays where it is");
    auto& open = sent_[{to, kind, block.data}];
    if (open.size() >= kOpenSends) action().finishes.push_back(open[open.size() - kOpenSends]);
    open.push_back({at_, action().sends.size()});
    action().sends.push_back({kind, to, std::move(block), std::move(part)});
  }
  int receive(int from, Traffic kind, Block block, Part part) {
    demand(from >= 0 && from != play_.rank, "it receives from a rank that is not a peer");
    demand(block.data != Data::saved, "what the forward saved stays where it is");
    action().receives.push_back({kind, from, std::move(block), std::move(part)});
    return static_cast<int>(action().receives.size()) - 1;
  }
  void expect(Part into, std::vector<int> receives, std::vector<Ingredient> ingredients = {}) {
    const int id = static_cast<int>(play_.arrivals.size());
    action().arrivals.push_back(id);
    ++open_[at_];
    held_.hold(into);
    use(into);
    held_.state(into).arriving.push_back(id);
    play_.arrivals.push_back({at_, std::move(into), std::move(receives), std::move(ingredients)});
  }

  // --- The operations

  // A collective leaves only the newest send of each channel under way.
  void bound_sends() {
    for (const auto& [channel, sends] : sent_)
      if (sends.size() >= kOpenSends) action().finishes.push_back(sends[sends.size() - kOpenSends]);
  }

  void step(const Step& step) {
    if (step.op == Op::gather || step.op == Op::merge || step.op == Op::all_to_all) bound_sends();
    switch (step.op) {
      case Op::attend:
        return attend(step);
      case Op::delta:
        return delta(step);
      case Op::exchange:
        return exchange(step);
      case Op::gather:
        return gather(step);
      case Op::merge:
        return merge(step);
      case Op::all_to_all:
        return step.in.slice == kAllHeads ? to_heads(step) : to_tokens(step);
    }
  }

  void attend(const Step& step) {
    demand(step.in.data == Data::query && step.with.data == Data::keys, "attend reads queries and keys");
    check_block(step.in);
    check_block(step.with);
    demand(step.in.slice == step.with.slice, "attend reads two slices of the heads");
    demand((step.in.slice == kAllHeads) == (head_.slices == 1),
           "attend reads one slice of the heads where they are split");
    const Part queries = read(step.in), keys = read(step.with);
    const auto add = [&](Data data, const Block& block, const Part& like) {
      const std::vector<int> table = play_.buffers[like.buffer].chunks;
      const Part result = result_part({data, block.chunks, block.slice}, table);
      if (!held_.state(result).made) make_now(result);
      held_.hold(result);
      use(result);
      action().adds.push_back(result);
    };
    if (head_.pass == Pass::forward) return add(Data::out, step.in, queries);
    add(Data::query_grad, step.in, queries);
    add(Data::keys_grad, step.with, keys);
  }

  void delta(const Step& step) {
    check_block(step.in);
    const Block &in = step.in, saved{Data::saved, in.chunks, in.slice}, query{Data::query, in.chunks, in.slice};
    demand(in.data == Data::out_grad && step.with == saved && step.out == query,
           "delta turns out_grad and saved into the query block of the same chunks");
    read(step.in);
    held_.give(read(step.with), at_);
    const Part query_part = make_whole(step.out);
    held_.hold(query_part);
  }

  void exchange(const Step& step) {
    demand(sends(step) || receives(step), "an exchange sends or receives");
    demand(!sends(step) || !receives(step) || step.in.data == step.out.data,
           "an exchange sends and receives the same kind of data");
    if (sends(step)) {
      check_block(step.in);
      const Part part = read(step.in);
      send(step.to, Traffic::p2p, step.in, part);
      if (is_partial(step.in.data)) held_.give(part, at_);
    }
    if (!receives(step)) return;
    check_block(step.out);
    if (is_partial(step.out.data)) {
      const Part into = result_part(step.out, step.out.chunks);
      const int index = receive(step.from, Traffic::p2p, step.out, into);
      return expect(into, {index}, {{index, {}}});
    }
    const Part arriving = make_whole(step.out);
    expect(arriving, {receive(step.from, Traffic::p2p, step.out, arriving)});
  }

  // The rank's index in a group whose members' chunks, one after the other, are those of `block`.
  size_t place_in(const Step& step, const Block& block) const {
    const auto found = std::find_if(step.group.begin(), step.group.end(),
                                    [&](const Member& member) { return member.rank == play_.rank; });
    demand(found != step.group.end(), "the rank is not in its own group");
    for (auto member = step.group.begin(); member != step.group.end(); ++member)
      for (auto other = step.group.begin(); other != member; ++other)
        demand(member->rank != other->rank, "a rank is in the group twice");
    demand(all_chunks(step.group) == block.chunks,
           "the members' chunks are not those of the whole block, in its order");
    return found - step.group.begin();
  }

  void gather(const Step& step) {
    check_block(step.in, true);
    check_block(step.out);
    const Member& own = step.group[place_in(step, step.out)];
    demand(!is_partial(step.in.data), "partial results are merged, not gathered");
    demand(step.in == Block{step.out.data, own.chunks, step.out.slice},
           "a gather brings the rank's own chunks of the group's");
    std::optional<Part> mine;
    if (!own.chunks.empty()) mine = read(step.in);
    const int buffer = make_whole(step.out).buffer;
    const auto place = [&](const Member& member) { return held_.part(buffer, member.chunks); };
    if (mine) {
      held_.hold(place(own));
      action().copies.push_back({*mine, place(own)});
    }
    for (const Member& member : step.group) {
      if (member.rank == play_.rank) continue;
      if (mine) send(member.rank, Traffic::gather, step.in, *mine);
      if (member.chunks.empty()) continue;
      const Block theirs{step.out.data, member.chunks, step.out.slice};
      expect(place(member), {receive(member.rank, Traffic::gather, theirs, place(member))});
    }
  }

  void merge(const Step& step) {
    check_block(step.in);
    check_block(step.out, true);
    const Member& own = step.group[place_in(step, step.in)];
    demand(is_partial(step.in.data), "only partial results are merged");
    demand(step.out == Block{step.in.data, own.chunks, step.in.slice},
           "a merge keeps the rank's own chunks of the group's");
    const Part mine = read(step.in);
    const auto share = [&](const Member& member) { return held_.part(mine.buffer, member.chunks); };
    held_.give(mine, at_);
    std::optional<Part> into;
    if (!own.chunks.empty()) into = result_part(step.out, step.out.chunks);
    std::vector<int> receives;
    std::vector<Ingredient> ingredients;
    for (const Member& member : step.group) {
      if (member.rank == play_.rank) {
        ingredients.push_back({-1, share(member)});
        continue;
      }
      if (!member.chunks.empty())
        send(member.rank, Traffic::merge, {step.in.data, member.chunks, step.in.slice}, share(member));
      if (!into) continue;
      receives.push_back(receive(member.rank, Traffic::merge, step.out, *into));
      ingredients.push_back({receives.back(), {}});
    }
    if (into) expect(*into, std::move(receives), std::move(ingredients));
  }

  // Checks a trade of the rank's own chunks of all heads (`all`) for the group's chunks of one slice.
  const Member& check_trade(const Step& step, const Block& all, const Block& slice) {
    check_block(all);
    check_block(slice);
    const size_t place = place_in(step, slice);
    demand(static_cast<int>(step.group.size()) == head_.slices && all.data == slice.data &&
               slice.slice == static_cast<int>(place) && all.slice == kAllHeads &&
               all.chunks == step.group[place].chunks && all.chunks == head_.owned_by(play_.rank),
           "an all-to-all trades the own chunks of all heads for the group's chunks of the own slice");
    return step.group[place];
  }

  void to_heads(const Step& step) {
    const Member& own = check_trade(step, step.in, step.out);
    const Data data = step.in.data;
    demand(!is_partial(data), "an all-to-all trades partial results for tokens only");
    const Part mine = read(step.in);
    const auto slice_of = [&](size_t slice) { return Part{mine.buffer, mine.runs, static_cast<int>(slice)}; };
    const int buffer = make_whole(step.out).buffer;
    held_.hold(held_.part(buffer, own.chunks));
    for (size_t i = 0; i < step.group.size(); ++i) {
      const Member& member = step.group[i];
      const Part place = held_.part(buffer, member.chunks);
      if (member.rank == play_.rank) {
        action().copies.push_back({slice_of(i), place});
        continue;
      }
      send(member.rank, Traffic::all_to_all, {data, own.chunks, static_cast<int>(i)}, slice_of(i));
      expect(place, {receive(member.rank, Traffic::all_to_all, {data, member.chunks, step.out.slice}, place)});
    }
  }

  void to_tokens(const Step& step) {
    const Member& own = check_trade(step, step.out, step.in);
    const Data data = step.in.data;
    demand(is_partial(data), "an all-to-all trades partial results for tokens only");
    const Part mine = read(step.in);
    held_.give(mine, at_);
    demand(!held_.find(step.out), "an all-to-all makes what is there already");
    const Part into = held_.whole(held_.make(step.out));
    std::vector<int> receives;
    std::vector<Ingredient> ingredients;
    for (size_t i = 0; i < step.group.size(); ++i) {
      const Member& member = step.group[i];
      const int slice = static_cast<int>(i);
      const Part share = held_.part(mine.buffer, member.chunks);
      if (member.rank == play_.rank) {
        ingredients.push_back({-1, share, slice});
        continue;
      }
      send(member.rank, Traffic::all_to_all, {data, member.chunks, step.in.slice}, share);
      receives.push_back(receive(member.rank, Traffic::all_to_all, {data, own.chunks, slice}, into));
      ingredients.push_back({receives.back(), {}, slice});
    }
    expect(into, std::move(receives), std::move(ingredients));
  }

  // --- The end

  bool is_result(int buffer) const {
    return std::any_of(play_.results.begin(), play_.results.end(), [&](auto& part) { return part.buffer == buffer; });
  }

  void check_end() const {
    for (int buffer = 0; buffer < static_cast<int>(play_.buffers.size()); ++buffer) {
      for (int id : held_.state(buffer).arriving) {
        const Part& into = play_.arrivals[id].into;
        Block block{play_.buffers[buffer].data, {}, play_.buffers[buffer].slice};
        for (const Run& run : into.runs)
          for (int i = run.first; i < run.first + run.count; ++i)
            block.chunks.push_back(play_.buffers[buffer].chunks[i]);
        fail(cat("receives ", to_text(block), ", which nothing reads"));
      }
      const std::vector<int>& table = play_.buffers[buffer].chunks;
      if (!is_partial(play_.buffers[buffer].data)) continue;
      Block left = held_.held(buffer);
      for (const Part& result : play_.results)
        if (result.buffer == buffer)
          for (const Run& run : result.runs)
            for (int i = run.first; i < run.first + run.count; ++i) std::erase(left.chunks, table[i]);
      if (!left.chunks.empty()) fail(cat("keeps ", to_text(left), ", a partial result that nobody merges"));
    }
  }

  // Plain data goes after the last step that uses it, a partial result when all of it was given away.
  void set_lifetimes() {
    const Block own = attended_form();
    const bool forward = head_.pass == Pass::forward;
    for (int buffer = 0; buffer < static_cast<int>(play_.buffers.size()); ++buffer) {
      const Block& block = play_.buffers[buffer];
      const bool saved =
          block.chunks == own.chunks && block.slice == own.slice &&
          (forward ? block.data == Data::query || block.data == Data::keys || block.data == Data::out
                   : block.data == Data::saved || (block.data == Data::keys && buffer == play_.inputs[1]));
      if (saved || is_result(buffer)) {
        play_.kept.push_back(buffer);
        continue;
      }
      const size_t end = is_partial(block.data) ? held_.state(buffer).given : held_.state(buffer).last_use;
      if (end != Holdings::kNever) play_.actions[end].frees.push_back(buffer);
    }
  }
  Block attended_form() const {
    return inputs_of({Pass::backward_keys, head_.slices, head_.owners}, steps_, play_.rank)[1];
  }

  const PlanHead& head_;
  const Steps& steps_;
  size_t at_ = 0;
  Play play_;
  Holdings held_{play_.buffers};
  std::map<size_t, int> open_;  // arrivals not yet waited for, by the step they began in
  std::map<std::tuple<int, Traffic, Data>, std::vector<Action::Send>> sent_;  // by channel
  std::vector<int> named_;                                                    // by chunk: the last block that named it
  int stamp_ = 0;
};

}  // namespace

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

Part Play::kept_part(const Block& block) const {
  for (auto buffer = kept.rbegin(); buffer != kept.rend(); ++buffer) {
    const Block& there = buffers[*buffer];
    if (there.data != block.data || there.slice != block.slice) continue;
    if (const auto runs = runs_of(there.chunks, block.chunks)) return {*buffer, *runs};
  }
  throw InternalError(cat("rank ", rank, " does not keep ", to_text(block)));
}

std::vector<Block> inputs_of(const PlanHead& head, const Steps& steps, int rank) {
  const std::vector<int> own = head.owned_by(rank);
  if (head.pass == Pass::forward) return {{Data::query, own, kAllHeads}, {Data::keys, own, kAllHeads}};
  Block form{Data::keys, own, kAllHeads};
  for (const Step& step : steps)
    if (step.op == Op::all_to_all && step.in.slice == kAllHeads) {
      form.chunks = step.out.chunks;
      form.slice = step.out.slice;
      break;
    }
  return {{Data::out_grad, own, kAllHeads}, form, {Data::saved, form.chunks, form.slice}};
}

std::vector<Block> results_of(const PlanHead& head, int rank) {
  const std::vector<int> own = head.owned_by(rank);
  if (own.empty()) return {};
  if (head.pass == Pass::forward) return {{Data::out, own, kAllHeads}};
  return {{Data::query_grad, own, kAllHeads}, {Data::keys_grad, own, kAllHeads}};
}

Play play_steps(const PlanHead& head, const Steps& steps, int rank, const std::vector<Block>& results) {
  return Player(head, steps, rank).play(results);
}

Play play_rank(const Plan& plan, int rank) {
  return play_steps(plan, plan.ranks.at(rank), rank, results_of(plan, rank));
}

std::string place_text(const Steps& steps, int rank, size_t index) {
  const std::string place = index < steps.size() ? cat("step ", index, " (", to_text(steps[index]), ")") : "its end";
  return cat("plan is wrong at rank ", rank, ", ", place, ": ");
}

std::vector<std::pair<Run, Run>> paired(const std::vector<Run>& a, const std::vector<Run>& b) {
  std::vector<std::pair<Run, Run>> pairs;
  Run left = a.at(0), right = b.at(0);
  for (size_t i = 0, j = 0; i < a.size();) {
    const int count = std::min(left.count, right.count);
    pairs.push_back({{left.first, count}, {right.first, count}});
    left = {left.first + count, left.count - count};
    right = {right.first + count, right.count - count};
    if (left.count == 0 && ++i < a.size()) left = a[i];
    if (right.count == 0 && ++j < b.size()) right = b[j];
  }
  return pairs;
}

}  // namespace startrail

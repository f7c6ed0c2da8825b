#include "startrail/plan/memory.h"

#include <algorithm>
#include <map>
#include <memory>
#include <utility>

#include "startrail/base/error.h"
#include "startrail/plan/make.h"
#include "startrail/plan/text.h"

namespace startrail {
namespace {

struct Account {
  int64_t held = 0, peak = 0;
};

// Some bytes, given back when the last one who refers to them lets go: to the player what a tensor is to the executor.
class Bytes {
 public:
  Bytes(Account& account, int64_t bytes) : account_(account), bytes_(bytes) {
    account_.held += bytes_;
    account_.peak = std::max(account_.peak, account_.held);
  }
  ~Bytes() { account_.held -= bytes_; }
  Bytes(const Bytes&) = delete;
  Bytes& operator=(const Bytes&) = delete;

 private:
  Account& account_;
  int64_t bytes_;
};
using Held = std::shared_ptr<const Bytes>;

// Messages with partial results, to be joined when their block is read.
struct Joining {
  std::vector<Held> parts;
  int64_t result_bytes;      // of a new tensor for what they make together; 0: the one part serves as it is
  int64_t beside_bytes = 0;  // one part at a time, converted to be added
};

struct Slot {
  Held held;
  std::vector<Joining> joining;
  bool incoming = false;  // something is on its way here
};

// Executor::run without tensors. run/footprint_test.cc holds the two together.
class Player {
 public:
  Player(const Plan& plan, int rank, const Problem& problem, const Scratch& scratch)
      : plan_(plan), steps_(plan.ranks.at(rank)), rank_(rank), problem_(problem), scratch_(scratch) {}

  int64_t play() {
    hold_inputs();
    std::map<Block, size_t> last_use;
    for (size_t i = 0; i < steps_.size(); ++i)
      for (const Block& block : {steps_[i].in, steps_[i].out}) last_use[block] = i;
    for (size_t i = 0; i < steps_.size(); ++i) {
      const size_t sent_before = on_way_.size();
      took_time_ = false;
      step(steps_[i]);
      for (const Block& block : {steps_[i].in, steps_[i].out})
        if (!is_partial(block.data) && last_use[block] == i && !is_kept(block)) slots_.erase(block);
      if (took_time_) on_way_.erase(on_way_.begin(), on_way_.begin() + sent_before);
    }
    for (const auto& [block, slot] : slots_) read(block);
    return account_.peak;
  }

 private:
  Held make(int64_t bytes) { return std::make_shared<Bytes>(account_, bytes); }
  Held make(const Block& block) {
    return make(bytes_of(block, is_partial(block.data) ? problem_.stat_bytes : problem_.element_bytes));
  }
  Held make_message(const Block& partial) { return make(bytes_of(partial, problem_.partial_bytes)); }
  int64_t bytes_of(const Block& block, int value_bytes) const {
    return block_bytes(block, plan_, problem_, value_bytes);
  }
  int64_t traded(Data data, int chunk) const { return traded_bytes(data, chunk, plan_, problem_); }
  // Partial results are converted for the wire, and back.
  bool converts() const { return problem_.partial_bytes != problem_.stat_bytes; }

  Block own(Data data) const { return {data, own_.chunks, own_.slice}; }
  bool is_kept(const Block& block) const { return plan_.pass == Pass::forward && block == own(block.data); }

  void hold_inputs() {
    const Block home{Data::query, {rank_}, kAllHeads};
    own_ = home;
    for (const Step& step : steps_)
      if (step.op == Op::all_to_all && step.in.slice == kAllHeads) own_ = step.out;
    const auto put = [&](const Block& block) { slots_[block].held = make(block); };
    if (plan_.pass == Pass::forward) {
      put(home);
      put({Data::keys, home.chunks, home.slice});
      return;
    }
    put({Data::out_grad, home.chunks, home.slice});
    put(own(Data::keys));
    saved_ = {slots_[own(Data::keys)].held, make(2 * bytes_of(own(Data::out_grad), problem_.element_bytes)),  // q, out
              make(bytes_of(own(Data::out), 0))};                                                             // lse
  }

  void step(const Step& step) {
    switch (step.op) {
      case Op::attend:
        return attend(step);
      case Op::delta:
        read(step.in);
        slots_[step.out].held = make(step.out);
        return;
      case Op::exchange:
        return exchange(step);
      case Op::gather:
        on_way_.push_back(read(step.in));
        slots_[step.out] = {make(step.out), {}, true};
        return;
      case Op::merge:
        return merge(step);
      case Op::all_to_all:
        return step.in.slice == kAllHeads ? to_heads(step) : to_tokens(step);
    }
  }

  Held read(const Block& block) {
    const auto found = slots_.find(block);
    STARTRAIL_CHECK(found != slots_.end(), "rank ", rank_, " does not hold ", to_text(block));
    Slot& slot = found->second;
    if (std::exchange(slot.incoming, false)) took_time_ = true;
    for (const Joining& joining : slot.joining) {
      const Held result = joining.result_bytes > 0 ? make(joining.result_bytes) : joining.parts[0];
      make(joining.beside_bytes);
      if (!slot.held) slot.held = result;  // else it is added to what is there
    }
    slot.joining.clear();
    return slot.held;
  }

  void attend(const Step& step) {
    const auto accumulate = [&](const Block& block) {
      if (Slot& slot = slots_[block]; !slot.held) slot.held = make(block);
    };
    read(step.in);
    read(step.out);
    took_time_ = true;
    if (plan_.pass == Pass::forward) {
      accumulate(out_of(step));
    } else {
      accumulate(query_grad_of(step));
      accumulate(keys_grad_of(step));
    }
    if (scratch_) make(scratch_(step));
  }

  void exchange(const Step& step) {
    if (sends(step)) {
      const bool partial = is_partial(step.in.data);
      const Held sent = read(step.in);
      on_way_.push_back(partial && converts() ? make_message(step.in) : sent);
      if (partial) slots_.erase(step.in);
    }
    if (!receives(step)) return;
    Slot& slot = slots_[step.out];
    slot.incoming = true;
    if (is_partial(step.out.data))
      slot.joining.push_back({{make_message(step.out)}, converts() ? bytes_of(step.out, problem_.stat_bytes) : 0});
    else
      slot.held = make(step.out);
  }

  void merge(const Step& step) {
    const int64_t bytes = bytes_of(step.out, problem_.stat_bytes);
    Joining joining{{read(step.in)}, bytes, converts() ? bytes : 0};  // its own share is a view of the whole
    slots_.erase(step.in);
    for (size_t i = 0; i < step.group.size(); ++i) {
      if (step.group[i] == rank_) continue;
      joining.parts.push_back(make_message(step.out));
      if (converts())
        on_way_.push_back(make_message({step.in.data, share_of(step.in.chunks, step.group.size(), i), step.in.slice}));
    }
    expect(step.out, std::move(joining));
  }

  void to_heads(const Step& step) {
    const Held whole = read(step.in);
    slots_[step.out] = {make(step.out), {}, true};
    for (int peer : step.group)
      if (peer != rank_) on_way_.push_back(make(traded(step.in.data, rank_)));
  }

  void to_tokens(const Step& step) {
    const Data data = step.in.data;
    const bool copied = is_key_side(data) && problem_.key_heads < plan_.slices;  // heads, whose gradients are summed
    const Block values{data == Data::out ? Data::out_grad : data, step.out.chunks, step.out.slice};  // lse stays behind
    Joining joining{{read(step.in)}, bytes_of(values, copied ? problem_.stat_bytes : problem_.element_bytes)};
    const int message_bytes = copied ? problem_.partial_bytes : problem_.element_bytes;
    for (int peer : step.group) {
      if (peer == rank_) continue;
      joining.parts.push_back(make(traded(data, rank_)));
      if (message_bytes != problem_.stat_bytes) on_way_.push_back(make(traded(data, peer)));
    }
    expect(step.out, std::move(joining));
  }

  void expect(const Block& block, Joining joining) {
    Slot& slot = slots_[block];
    slot.incoming = true;
    slot.joining.push_back(std::move(joining));
  }

  Account account_;  // before all that holds bytes of it
  const Plan& plan_;
  const Steps& steps_;
  int rank_;
  const Problem& problem_;
  const Scratch& scratch_;
  Block own_;  // its chunks and slice are those whose q, keys and out outlive the forward
  std::map<Block, Slot> slots_;
  std::vector<Held> on_way_, saved_;
  bool took_time_ = false;  // the step at hand: so that earlier messages have arrived
};

Layout evened(const Layout& layout) {
  int64_t longest = 0;
  for (int chunk = 0; chunk < layout.chunks; ++chunk) longest = std::max(longest, chunk_tokens(layout, chunk));
  return {Order::contiguous, longest * layout.chunks, layout.chunks};
}

}  // namespace

int64_t peak_bytes(const Plan& plan, int rank, const Problem& problem, const Scratch& scratch) {
  return Player(plan, rank, problem, scratch).play();
}

int64_t peak_bytes(const Grid& grid, Pass pass, const Problem& problem) {
  Problem even = problem;
  even.queries = evened(problem.queries);
  even.keys = evened(problem.keys);
  return peak_bytes({pass, grid.heads, {make_steps(grid, pass, 0)}}, 0, even);
}

}  // namespace startrail

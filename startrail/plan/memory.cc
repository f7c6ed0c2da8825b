#include "startrail/plan/memory.h"

#include <algorithm>
#include <map>
#include <memory>
#include <utility>

#include "startrail/base/error.h"
#include "startrail/plan/make.h"

namespace startrail {
namespace {

struct Account {
  int64_t held = 0, peak = 0;
};

// Some bytes, given back when the last one who refers to them lets go: to the keeper what a tensor is to the executor.
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

// The executor without tensors. run/footprint_test.cc holds the two together.
class Keeper {
 public:
  Keeper(const PlanHead& head, const Steps& steps, const Play& play, const Problem& problem, const Scratch& scratch)
      : head_(head), steps_(steps), play_(play), problem_(problem), scratch_(scratch), buffers_(play.buffers.size()) {}

  // The most held during each step, the first with the inputs, and at the end.
  std::vector<int64_t> run() {
    std::vector<int64_t> peaks;
    const auto note = [&] {
      peaks.push_back(account_.peak);
      account_.peak = account_.held;
    };
    for (int buffer : play_.inputs) make_buffer(buffer);
    for (size_t step = 0; step < steps_.size(); ++step) {
      act(step);
      note();
    }
    for (int id : play_.last_waits) settle(id);
    note();
    return peaks;
  }

 private:
  Held make(int64_t bytes) { return std::make_shared<Bytes>(account_, bytes); }
  Form form_of(int buffer) const { return held_form(play_.buffers[buffer], head_, problem_); }
  Form form_of(const Part& part) const {
    const Block& block = play_.buffers[part.buffer];
    Form form = form_of(part.buffer);
    form.tokens = 0;
    for (const Run& run : part.runs)
      for (int place = run.first; place < run.first + run.count; ++place)
        form.tokens += problem_.side(block.data).tokens(block.chunks[place]);
    return form;
  }
  void make_buffer(int buffer) { buffers_[buffer] = make(form_of(buffer).bytes(problem_)); }

  void act(size_t step) {
    const Action& action = play_.actions[step];
    for (int id : action.waits) settle(id);
    for (const Action::Send& send : action.finishes) sent_.erase({send.action, send.index});
    for (int buffer : action.makes) make_buffer(buffer);
    if (action.adds.empty())  // an attend takes its runs one by one
      for (const Part& part : action.reads) rows_held(part);
    for (size_t i = 0; i < action.sends.size(); ++i) sent_[{step, i}] = message_held(action.sends[i]);
    for (int id : action.arrivals) {
      const Arrival& arrival = play_.arrivals[id];
      if (arrival.ingredients.empty()) continue;  // lands in its buffer
      for (int receive : arrival.receives)
        coming_[id].push_back(make(wire_form(action.receives[receive], head_, problem_).bytes(problem_)));
      for (const Ingredient& ingredient : arrival.ingredients)
        if (ingredient.receive < 0) coming_[id].push_back(rows_held(ingredient.part));
    }
    if (scratch_ && !action.adds.empty()) call_kernel(action);
    for (int buffer : action.frees) buffers_[buffer].reset();
  }

  int64_t tokens_of(const Part& part, const Run& run) const { return form_of(Part{part.buffer, {run}}).tokens; }

  void call_kernel(const Action& action) {
    const Part &queries = action.reads[0], &keys = action.reads[1];
    for (const auto& [query_run, result] : paired(queries.runs, action.adds[0].runs))
      for (const auto& [key_run, other] : paired(keys.runs, action.adds.size() > 1 ? action.adds[1].runs : keys.runs))
        make(scratch_(tokens_of(queries, query_run), tokens_of(keys, key_run)));
  }

  // Chunks that lie together are a view of their buffer, others are put together.
  Held rows_held(const Part& part) {
    return part.runs.size() == 1 ? buffers_[part.buffer] : make(form_of(part).bytes(problem_));
  }

  // A message is a view of what is held where it can be.
  Held message_held(const Message& message) {
    const Held rows = rows_held(message.part);  // for a moment, if not for longer
    const Form wire = wire_form(message, head_, problem_);
    const bool as_it_is = bytes_of(wire.values, problem_) == bytes_of(form_of(message.part.buffer).values, problem_) &&
                          message.part.slice == kAllHeads;
    return as_it_is ? rows : make(wire.bytes(problem_));
  }

  void settle(int id) {
    const Arrival& arrival = play_.arrivals[id];
    if (!arrival.ingredients.empty()) join(id, arrival);
    if (arrival.ends)
      for (size_t i = 0; i < play_.actions[arrival.action].sends.size(); ++i) sent_.erase({arrival.action, i});
  }

  // What arrived is joined in a tensor of its own, which becomes the buffer or is added to it.
  void join(int id, const Arrival& arrival) {
    const int buffer = arrival.into.buffer;
    const Form form = form_of(arrival.into);
    const bool converts = problem_.partial_bytes != problem_.stat_bytes;
    const bool alone = arrival.ingredients.size() == 1;
    Held result = alone && !converts ? coming_[id][0] : make(form.bytes(problem_));
    if (!alone && converts && arrival.ingredients[0].slice == kAllHeads)
      make(form.value_bytes(problem_));  // one ingredient at a time
    if (!buffers_[buffer]) buffers_[buffer] = std::move(result);
    coming_.erase(id);
  }

  Account account_;  // before all that holds bytes of it
  const PlanHead& head_;
  const Steps& steps_;
  const Play& play_;
  const Problem& problem_;
  const Scratch& scratch_;
  std::vector<Held> buffers_;
  std::map<std::pair<size_t, size_t>, Held> sent_;  // by action and index
  std::map<int, std::vector<Held>> coming_;         // what an arrival is made of
};

std::vector<int64_t> held_bytes(const PlanHead& head, const Steps& steps, int rank, const Problem& problem,
                                const Scratch& scratch) {
  const Play play = play_steps(head, steps, rank, results_of(head, rank));
  return Keeper(head, steps, play, problem, scratch).run();
}

}  // namespace

int64_t peak_bytes(const Plan& plan, int rank, const Problem& problem, const Scratch& scratch) {
  return std::ranges::max(held_bytes(plan, rank, problem, scratch));
}

std::vector<int64_t> held_bytes(const Plan& plan, int rank, const Problem& problem, const Scratch& scratch) {
  return held_bytes(plan, plan.ranks.at(rank), rank, problem, scratch);
}

int64_t peak_bytes(const Grid& grid, Pass pass, const Problem& problem) {
  Problem even = problem;
  even.queries = evened(problem.queries);
  even.keys = evened(problem.keys);
  return std::ranges::max(held_bytes(plan_head(grid, pass), make_steps(grid, pass, 0), 0, even, {}));
}

}  // namespace startrail

#include "startrail/run/executor.h"

#include <ATen/ATen.h>
#include <algorithm>
#include <limits>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <utility>

#include "startrail/base/error.h"
#include "startrail/plan/text.h"
#include "startrail/run/comm/reason.h"

namespace startrail {
namespace {

constexpr int64_t kDeltaValues = 1 << 13;  // of a block, whose products are summed at a time
constexpr int64_t kMergeValues = 1 << 12;  // of lse, merged at a time
constexpr double kInfinity = std::numeric_limits<double>::infinity();

// [batch, heads, tokens, dim] (or without dim) of one plane of a block's tensor, without a copy.
at::Tensor plane(const at::Tensor& tensor, int64_t index) {
  // In one call, since several views for each plane would be most of the time of a small attention.
  const auto sizes = tensor.sizes(), strides = tensor.strides();
  const int64_t offset = tensor.storage_offset() + index * strides[1];
  if (tensor.dim() == 5)
    return tensor.as_strided({sizes[2], sizes[3], sizes[0], sizes[4]}, {strides[2], strides[3], strides[0], strides[4]},
                             offset);
  return tensor.as_strided({sizes[2], sizes[3], sizes[0]}, {strides[2], strides[3], strides[0]}, offset);
}

// How many rows of a tensor hold about so many values, 1 or more.
int64_t rows_of_values(int64_t values, const at::Tensor& tensor) {
  return std::max<int64_t>(1, values * tensor.size(0) / std::max<int64_t>(1, tensor.numel()));
}

Running running_of(const Tensors& tensors) { return {plane(tensors[0], 0), plane(tensors[1], 0)}; }

// Messages of one kind of traffic, data and tensor keep their order among themselves.
int tag_of(const Message& message, size_t tensor) {
  return (static_cast<int>(message.kind) * 8 + static_cast<int>(message.block.data)) * 8 + static_cast<int>(tensor);
}

// What a step works on: its text without the operation's name.
std::string subject_of(const Step& step) { return to_text(step).substr(to_text(step.op).size() + 1); }

}  // namespace

std::shared_ptr<const Script> make_script(const PlanHead& head, Steps steps, int rank,
                                          const std::vector<Block>& results) {
  Play play = play_steps(head, steps, rank, results);
  return std::make_shared<Script>(Script{std::move(steps), std::move(play)});
}

Executor::Executor(const ExecutorOptions& options, Group& group, std::shared_ptr<const Script> script)
    : options_(options),
      group_(group),
      script_(std::move(script)),
      steps_(script_->steps),
      play_(script_->play),
      last_waits_(play_.last_waits),
      buffers_(play_.buffers.size()) {}

Executor::~Executor() = default;

void Executor::put(const Block& block, Tensors tensors) {
  for (int buffer : play_.inputs)
    if (play_.buffers[buffer] == block) {
      buffers_[buffer] = std::move(tensors);
      return;
    }
  throw InternalError(cat("rank ", group_.rank(), " does not start with ", to_text(block)));
}

void Executor::run() {
  for (size_t i = 0; i < steps_.size(); ++i) {
    const auto where = [&](const std::exception& error) {
      return cat("rank ", group_.rank(), ", ", to_text(options_.head.pass), " step ", i, " (", to_text(steps_[i]),
                 "): ", reason_of(error));
    };
    try {
      if (options_.on_step) options_.on_step(group_.rank(), i, steps_[i]);
      const auto about = group_.meter().trace() ? label(i, subject_of(steps_[i])) : nullptr;
      group_.meter().timed(steps_[i].op, about.get(), [&] { act(i); });
    } catch (const ClusterError&) {
      throw;  // says already which rank failed
    } catch (const InternalError& error) {
      throw InternalError(where(error));
    } catch (const std::exception& error) {
      throw ClusterError(where(error));
    }
  }
}

Tensors Executor::take(const Block& block) {
  for (int arrival : std::exchange(last_waits_, {})) {
    const size_t step = play_.arrivals[arrival].action;
    const auto about = group_.meter().trace() ? label(step, subject_of(steps_[step])) : nullptr;
    group_.meter().timed(steps_[step].op, about.get(), [&] { settle(arrival); });
  }
  return rows(play_.kept_part(block));
}

void Executor::finish() {
  for (const auto& [send, pending] : sent_) group_.channel().wait(pending);
  sent_.clear();
}

void Executor::finish(const Action::Send& send) {
  const auto found = sent_.find({send.action, send.index});
  if (found == sent_.end()) return;
  group_.channel().wait(found->second);
  sent_.erase(found);
}

// In the order that plan/memory.cc counts in.
void Executor::act(size_t index) {
  const Action& action = play_.actions[index];
  for (int arrival : action.waits) settle(arrival);
  for (const Action::Send& send : action.finishes) finish(send);
  for (int buffer : action.makes) make_buffer(buffer);
  switch (steps_[index].op) {
    case Op::attend:
      attend(action);
      break;
    case Op::delta:
      delta(action);
      break;
    default:
      communicate(index);
  }
  for (int buffer : action.frees) buffers_[buffer].clear();
}

// --- Buffers

at::ScalarType Executor::type_of(Number number) const {
  switch (number) {
    case Number::element:
      return options_.element.dtype().toScalarType();
    case Number::partial:
      return options_.partial;
    case Number::accumulator:
      return options_.accumulator;
  }
  throw InternalError("unknown number");
}

Tensors Executor::make_tensors(const Form& form) const {
  const Problem& p = options_.problem;
  Tensors tensors{
      at::empty({form.tokens, form.planes, p.batch, form.heads, p.dim}, options_.element.dtype(type_of(form.values)))};
  if (form.stats > 0)
    tensors.push_back(
        at::empty({form.tokens, form.stats, p.batch, form.heads}, options_.element.dtype(options_.accumulator)));
  return tensors;
}

// Partial results start from nothing.
void Executor::make_buffer(int buffer) {
  const Block& block = play_.buffers[buffer];
  Tensors& tensors = buffers_[buffer] = make_tensors(held_form(block, options_.head, options_.problem));
  if (!is_partial(block.data)) return;
  tensors[0].zero_();
  if (tensors.size() > 1) tensors[1].fill_(-kInfinity);
}

std::vector<int> Executor::chunks_of(int buffer, const Run& run) const {
  const auto first = play_.buffers[buffer].chunks.begin() + run.first;
  return {first, first + run.count};
}

// A view of neighbouring chunks.
Tensors Executor::rows(int buffer, const Run& run) const {
  const Tensors& tensors = buffers_[buffer];
  STARTRAIL_CHECK(!tensors.empty(), "rank ", group_.rank(), " does not hold ", to_text(play_.buffers[buffer]));
  const std::vector<int>& table = play_.buffers[buffer].chunks;
  if (run.count == static_cast<int>(table.size())) return tensors;
  const Chunks& side = options_.problem.side(play_.buffers[buffer].data);
  const int64_t begin = side.tokens(chunks_of(buffer, {0, run.first})), count = side.tokens(chunks_of(buffer, run));
  Tensors part;
  for (const at::Tensor& t : tensors) part.push_back(t.narrow(0, begin, count));
  return part;
}

// Chunks that are not neighbours are put together.
Tensors Executor::rows(const Part& part) const {
  if (part.runs.size() == 1) return rows(part.buffer, part.runs[0]);
  std::vector<Tensors> runs;
  for (const Run& run : part.runs) runs.push_back(rows(part.buffer, run));
  Tensors together;
  for (size_t t = 0; t < runs.at(0).size(); ++t) {
    Tensors pieces;
    for (const Tensors& run : runs) pieces.push_back(run[t]);
    together.push_back(at::cat(pieces));
  }
  return together;
}

// The heads of one slice of a tensor of all heads; key/value heads fewer than slices are in several.
at::Tensor Executor::slice_of(const at::Tensor& all_heads, Data data, int slice) const {
  const int64_t total = all_heads.size(3), slices = options_.head.slices;
  const int64_t heads =
      is_key_side(data) ? key_heads_of_slice(static_cast<int>(total), options_.head.slices) : total / slices;
  return all_heads.narrow(3, slice * total / slices, heads);
}

// --- Communication

std::shared_ptr<const TraceLabel> Executor::label(size_t step, const std::string& block) const {
  return std::make_shared<TraceLabel>(
      TraceLabel{to_text(options_.head.pass), options_.layer, static_cast<int64_t>(step), block});
}

// In the wire's type; lse and delta keep theirs.
Tensors Executor::outgoing(const Message& message) const {
  const Form wire = wire_form(message, options_.head, options_.problem);
  Tensors tensors = rows(message.part);
  if (message.part.slice != kAllHeads) tensors[0] = slice_of(tensors[0], message.block.data, message.part.slice);
  tensors[0] = tensors[0].to(type_of(wire.values)).contiguous();
  if (wire.stats == 0) tensors.resize(1);
  return tensors;
}

void Executor::communicate(size_t index) {
  const Action& action = play_.actions[index];
  std::vector<Post> batch;
  const auto add = [&](Post::Way way, const Message& message, const Tensors& tensors) {
    const auto about = group_.meter().trace() ? label(index, to_text(message.block)) : nullptr;
    for (size_t i = 0; i < tensors.size(); ++i)
      if (tensors[i].numel() > 0)  // nothing is sent for no tokens
        batch.push_back({way, tensors[i], message.peer, tag_of(message, i), message.kind, about});
    return batch.size();
  };
  std::vector<size_t> ends;  // in the batch, of each send and then of each receive
  for (const Message& message : action.sends) ends.push_back(add(Post::Way::send, message, outgoing(message)));
  // What is joined with others when it is read comes into tensors of its own; everything else lands in its place.
  std::vector<bool> joined(action.receives.size());
  for (int id : action.arrivals)
    for (int receive : play_.arrivals[id].receives) joined[receive] = !play_.arrivals[id].ingredients.empty();
  std::vector<Tensors> received;
  for (size_t i = 0; i < action.receives.size(); ++i) {
    const Message& message = action.receives[i];
    received.push_back(joined[i] ? make_tensors(wire_form(message, options_.head, options_.problem))
                                 : rows(message.part));
    ends.push_back(add(Post::Way::receive, message, received.back()));
  }
  const std::vector<Pending> posted = group_.channel().post(batch);
  const auto pending = [&](size_t i) {
    return std::vector<Pending>(posted.begin() + (i == 0 ? 0 : ends[i - 1]), posted.begin() + ends[i]);
  };
  for (size_t i = 0; i < action.sends.size(); ++i) sent_[{index, i}] = pending(i);
  for (const Action::Copy& copy : action.copies) {
    Tensors from = rows(copy.from), to = rows(copy.to);
    if (copy.from.slice != kAllHeads)
      from[0] = slice_of(from[0], play_.buffers[copy.from.buffer].data, copy.from.slice);
    for (size_t t = 0; t < to.size(); ++t) to[t].copy_(from[t]);
  }
  for (int id : action.arrivals) {
    const Arrival& arrival = play_.arrivals[id];
    Coming& coming = coming_[id];
    for (int receive : arrival.receives) {
      const auto more = pending(action.sends.size() + receive);
      coming.pending.insert(coming.pending.end(), more.begin(), more.end());
      if (!arrival.ingredients.empty()) coming.received.push_back(received[receive]);
    }
    for (const Ingredient& ingredient : arrival.ingredients)
      if (ingredient.receive < 0) coming.own.push_back(rows(ingredient.part));
  }
}

// Waits for an arrival and joins it with what is there.
void Executor::settle(int id) {
  const Arrival& arrival = play_.arrivals[id];
  Coming& coming = coming_.at(id);
  group_.channel().wait(coming.pending);
  if (!arrival.ingredients.empty()) {
    const auto turn = group_.compute();
    const Data data = play_.buffers[arrival.into.buffer].data;
    Tensors& there = buffers_[arrival.into.buffer];
    Tensors more = join(arrival, coming);
    if (there.empty()) {
      there = std::move(more);
    } else {
      int64_t begin = 0;
      for (const Run& run : arrival.into.runs) {
        Tensors mine = rows(arrival.into.buffer, run), theirs;
        for (const at::Tensor& t : more) theirs.push_back(t.narrow(0, begin, mine[0].size(0)));
        begin += mine[0].size(0);
        add(data, mine, theirs);
      }
    }
  }
  coming_.erase(id);
  if (arrival.ends)
    for (size_t i = 0; i < play_.actions[arrival.action].sends.size(); ++i) finish({arrival.action, i});
}

void Executor::add(Data data, Tensors& into, const Tensors& more) const {
  if (data != Data::out) {
    into[0].add_(more[0]);
    return;
  }
  // A few rows at a time: what it takes besides is several numbers a row, which narrow heads would notice.
  const int64_t tokens = into[0].size(0), step = rows_of_values(kMergeValues, into[1]);
  for (int64_t begin = 0; begin < tokens; begin += step) {
    const auto some = [&](const Tensors& of) {
      const int64_t count = std::min(step, tokens - begin);
      return running_of({of[0].narrow(0, begin, count), of[1].narrow(0, begin, count)});
    };
    Running running = some(into);
    const Running partial = some(more);
    merge_partial(running, partial.out, partial.lse);
  }
}

// What the ingredients make together: added up in their order, so that the result has the same bits every time.
Tensors Executor::join(const Arrival& arrival, const Coming& coming) const {
  std::vector<Tensors> ingredients;
  auto received = coming.received.begin(), own = coming.own.begin();
  for (const Ingredient& ingredient : arrival.ingredients)
    ingredients.push_back(ingredient.receive < 0 ? *own++ : *received++);
  if (arrival.ingredients[0].slice != kAllHeads) return put_together(arrival, ingredients);
  Tensors result;
  for (Tensors& ingredient : ingredients) {
    ingredient[0] = ingredient[0].to(options_.accumulator);
    if (ingredients.size() == 1) return ingredient;
    if (result.empty())
      for (const at::Tensor& t : ingredient) result.push_back(t.clone());  // not a view that keeps a whole block alive
    else
      add(play_.buffers[arrival.into.buffer].data, result, ingredient);
    ingredient.clear();
  }
  return result;
}

// All heads from their slices; gradients of copied key/value heads are summed.
Tensors Executor::put_together(const Arrival& arrival, const std::vector<Tensors>& ingredients) const {
  const Block& block = play_.buffers[arrival.into.buffer];
  Tensors result = make_tensors(held_form(block, options_.head, options_.problem));
  result[0].zero_();
  const bool copied = is_copied(block.data, options_.head, options_.problem);
  for (size_t i = 0; i < ingredients.size(); ++i) {
    const at::Tensor place = slice_of(result[0], block.data, arrival.ingredients[i].slice);
    copied ? place.add_(ingredients[i][0]) : place.copy_(ingredients[i][0]);
  }
  return result;
}

// --- Computing

void Executor::attend(const Action& action) {
  const auto turn = group_.compute();
  const bool backward = options_.head.pass != Pass::forward;
  const Part &queries = action.reads[0], &keys = action.reads[1], &first = action.adds[0],
             &second = backward ? action.adds[1] : keys;
  // One call for each pair of runs; one in all where each side is one run and its result lies as it does.
  for (const auto& [query_run, first_run] : paired(queries.runs, first.runs))
    for (const auto& [key_run, second_run] : paired(keys.runs, second.runs)) {
      const Tensors query = rows(queries.buffer, query_run), kv = rows(keys.buffer, key_run);
      const AttendInput input{plane(query[0], 0),
                              plane(kv[0], 0),
                              plane(kv[0], 1),
                              options_.problem.queries.pieces(chunks_of(queries.buffer, query_run)),
                              options_.problem.keys.pieces(chunks_of(keys.buffer, key_run)),
                              &options_.band,
                              options_.scale,
                              [this] { group_.check_alive(); }};
      const Tensors added = rows(first.buffer, first_run);
      if (!backward) {
        Running running = running_of(added);
        options_.kernel->attend(input, running);
        continue;
      }
      const at::Tensor dkv = rows(second.buffer, second_run)[0];
      Gradients gradients{plane(added[0], 0), plane(dkv, 0), plane(dkv, 1)};
      options_.kernel->attend_backward({input, plane(query[0], 1), plane(query[1], 0), plane(query[1], 1)}, gradients);
    }
}

void Executor::delta(const Action& action) {
  const Tensors dout = rows(action.reads[0]), saved = rows(action.reads[1]);
  const auto turn = group_.compute();
  const at::Tensor &q = saved[0], &out = saved[1], &lse = saved[2];
  const Tensors& query = buffers_[action.makes[0]];
  query[0].narrow(1, 0, 1).copy_(q);
  query[0].narrow(1, 1, 1).copy_(dout[0]);
  query[1].narrow(1, 0, 1).copy_(lse);
  // A few rows at a time: in the accumulator's type all of dout and out would be as large as the blocks themselves.
  const int64_t tokens = dout[0].size(0), step = rows_of_values(kDeltaValues, dout[0]);
  for (int64_t begin = 0; begin < tokens; begin += step) {
    const auto some = [&](const at::Tensor& t) { return t.narrow(0, begin, std::min(step, tokens - begin)); };
    some(query[1]).narrow(1, 1, 1).copy_(
        some(dout[0]).to(options_.accumulator).mul(some(out).to(options_.accumulator)).sum(-1));
  }
}

}  // namespace startrail

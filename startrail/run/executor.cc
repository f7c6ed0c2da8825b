#include "startrail/run/executor.h"

#include <ATen/ATen.h>
#include <algorithm>
#include <limits>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include "startrail/base/error.h"
#include "startrail/plan/text.h"
#include "startrail/run/reason.h"

namespace startrail {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// [batch, heads, tokens, dim] (or without dim) of one plane of a block's tensor, without a copy.
at::Tensor plane(const at::Tensor& tensor, int64_t index) {
  const at::Tensor t = tensor.select(1, index);
  return t.dim() == 4 ? t.permute({1, 2, 0, 3}) : t.permute({1, 2, 0});
}

Running running_of(const Tensors& tensors) { return {plane(tensors[0], 0), plane(tensors[1], 0)}; }

Tensors rows_of(const Tensors& tensors, int64_t begin, int64_t count) {
  Tensors rows;
  for (const at::Tensor& t : tensors) rows.push_back(t.narrow(0, begin, count));
  return rows;
}

// What a step moves; an exchange may lack either half.
Data data_of(const Step& step) { return step.op == Op::exchange && !sends(step) ? step.out.data : step.in.data; }

// Messages of one kind of step, data and tensor keep their order among themselves.
int tag_of(const Step& step, size_t tensor) {
  return (static_cast<int>(step.op) * 8 + static_cast<int>(data_of(step))) * 8 + static_cast<int>(tensor);
}

Traffic traffic_of(Op op) {
  switch (op) {
    case Op::gather:
      return Traffic::gather;
    case Op::merge:
      return Traffic::merge;
    case Op::all_to_all:
      return Traffic::all_to_all;
    default:
      return Traffic::p2p;
  }
}

}  // namespace

Executor::Executor(const Job& job, Group& group) : job_(job), group_(group) {}

void Executor::put(const Block& block, Tensors tensors) { slots_[block].tensors = std::move(tensors); }

Tensors Executor::take(const Block& block) {
  // What is still to be joined here came from the last merge or all-to-all.
  group_.timed(Op::merge, [&] { read(block); });
  return slots_.at(block).tensors;
}

void Executor::run(const Steps& steps) {
  for (size_t i = 0; i < steps.size(); ++i)
    for (const Block& block : {steps[i].in, steps[i].out}) last_use_[block] = i;
  for (size_t i = 0; i < steps.size(); ++i) {
    const auto where = [&](const std::exception& error) {
      return cat("rank ", group_.rank(), ", ", to_text(job_.pass), " step ", i, " (", to_text(steps[i]),
                 "): ", reason_of(error));
    };
    try {
      if (job_.on_step) job_.on_step(group_.rank(), i, steps[i]);
      group_.timed(steps[i].op, [&] { step(steps[i]); });
    } catch (const ClusterError&) {
      throw;  // says already which rank failed
    } catch (const InternalError& error) {
      throw InternalError(where(error));
    } catch (const std::exception& error) {
      throw ClusterError(where(error));
    }
    forget(steps, i);
  }
}

void Executor::finish() {
  for (const Pending& pending : sends_) group_.wait(pending);
  sends_.clear();
}

void Executor::step(const Step& step) {
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

// Frees what no later step reads, and sends that are done.
void Executor::forget(const Steps& steps, size_t index) {
  for (const Block& block : {steps[index].in, steps[index].out})
    if (!is_partial(block.data) && last_use_[block] == index &&
        std::find(kept_.begin(), kept_.end(), block) == kept_.end())
      slots_.erase(block);
  std::erase_if(sends_, [](const Pending& pending) { return Group::done(pending); });
}

int64_t Executor::tokens_of(Data data, const std::vector<int>& chunks) const {
  return chunk_tokens(is_key_side(data) ? job_.problem.keys : job_.problem.queries, chunks);
}

// New tensors for `chunks` in the slice of `block`, as the header lays them out.
Tensors Executor::make_tensors(const Block& block, at::ScalarType partial) const {
  const Problem& p = job_.problem;
  const int64_t heads = is_key_side(block.data)
                            ? (block.slice == kAllHeads ? p.key_heads : key_heads_of_slice(p.key_heads, job_.slices))
                            : (block.slice == kAllHeads ? p.heads : p.heads / job_.slices);
  const bool both = is_key_side(block.data) || (block.data == Data::query && job_.pass != Pass::forward);
  const int64_t tokens = tokens_of(block.data, block.chunks), planes = both ? 2 : 1;
  const at::TensorOptions stat = job_.element.dtype(job_.accumulator);
  const at::TensorOptions values = is_partial(block.data) ? job_.element.dtype(partial) : job_.element;
  Tensors tensors{at::empty({tokens, planes, p.batch, heads, p.dim}, values)};
  if (block.data == Data::out || (block.data == Data::query && both))
    tensors.push_back(at::empty({tokens, planes, p.batch, heads}, stat));
  return tensors;
}

// The block's tensors, once everything on its way to them has come.
Tensors& Executor::read(const Block& block) {
  const auto found = slots_.find(block);
  STARTRAIL_CHECK(found != slots_.end(), "rank ", group_.rank(), " does not hold ", to_text(block));
  Slot& slot = found->second;
  for (const Pending& pending : slot.incoming) group_.wait(pending);
  slot.incoming.clear();
  if (!slot.finish.empty()) {
    const auto turn = group_.compute();
    for (const auto& finish : slot.finish) finish();
    slot.finish.clear();
  }
  return slot.tensors;
}

// The block's tensors to add to, made on first use; what is on its way joins them when they are read.
Tensors& Executor::accumulate(const Block& block, double lse) {
  Slot& slot = slots_[block];
  if (slot.tensors.empty()) {
    slot.tensors = make_tensors(block);
    slot.tensors[0].zero_();
    if (slot.tensors.size() > 1) slot.tensors[1].fill_(lse);
  }
  return slot.tensors;
}

void Executor::join(Data data, Tensors& into, const Tensors& more) const {
  if (data == Data::out) {
    Running running = running_of(into);
    const Running partial = running_of(more);
    merge_partial(running, partial.out, partial.lse);
  } else {
    into[0].add_(more[0]);
  }
}

// A partial block that came in joins what is there.
void Executor::add_to(const Block& block, Tensors more) {
  Tensors& mine = slots_[block].tensors;
  if (mine.empty())
    mine = std::move(more);
  else
    join(block.data, mine, more);
}

// Posts tensors in the wire type (lse and delta keep theirs); nothing is sent for no tokens.
void Executor::send(const Tensors& tensors, int to, const Step& step, at::ScalarType type) {
  for (size_t i = 0; i < tensors.size(); ++i)
    if (tensors[i].numel() > 0)
      sends_.push_back(group_.send((i == 0 ? tensors[i].to(type) : tensors[i]).contiguous(), to, tag_of(step, i),
                                   traffic_of(step.op)));
}

void Executor::receive(Slot& slot, const Tensors& tensors, int from, const Step& step) {
  for (size_t i = 0; i < tensors.size(); ++i)
    if (tensors[i].numel() > 0)
      slot.incoming.push_back(group_.receive(tensors[i], from, tag_of(step, i), traffic_of(step.op)));
}

void Executor::attend(const Step& step) {
  const Tensors query = read(step.in), keys = read(step.out);
  const auto turn = group_.compute();
  AttendInput input{plane(query[0], 0),
                    plane(keys[0], 0),
                    plane(keys[0], 1),
                    chunk_pieces(job_.problem.queries, step.in.chunks),
                    chunk_pieces(job_.problem.keys, step.out.chunks),
                    &job_.band,
                    job_.scale,
                    [this] { group_.check_alive(); }};
  if (job_.pass == Pass::forward) {
    Running running = running_of(accumulate(out_of(step), -kInfinity));
    job_.kernel->attend(input, running);
    return;
  }
  const at::Tensor dq = accumulate(query_grad_of(step), 0)[0], dkv = accumulate(keys_grad_of(step), 0)[0];
  Gradients gradients{plane(dq, 0), plane(dkv, 0), plane(dkv, 1)};
  job_.kernel->attend_backward({input, plane(query[0], 1), plane(query[1], 0), plane(query[1], 1)}, gradients);
}

void Executor::delta(const Step& step) {
  const Tensors dout = read(step.in);
  const auto turn = group_.compute();
  const at::Tensor &q = saved_[0], &out = saved_[1], &lse = saved_[2];
  const at::Tensor delta = (dout[0].to(job_.accumulator) * out.to(job_.accumulator)).sum(-1);
  put(step.out, {at::cat({q, dout[0]}, 1), at::cat({lse, delta}, 1)});
  saved_.clear();
}

void Executor::exchange(const Step& step) {
  const bool partial = is_partial(data_of(step));
  if (sends(step)) {
    send(read(step.in), step.to, step, partial ? job_.partial : job_.element.dtype().toScalarType());
    if (partial) slots_.erase(step.in);
  }
  if (!receives(step)) return;
  Slot& slot = slots_[step.out];
  Tensors arriving = make_tensors(step.out, job_.partial);
  if (!partial) {
    receive(slot, arriving, step.from, step);
    slot.tensors = std::move(arriving);
    return;
  }
  receive(slot, arriving, step.from, step);
  slot.finish.push_back([this, block = step.out, arriving] {
    Tensors more = arriving;
    more[0] = more[0].to(job_.accumulator);
    add_to(block, std::move(more));
  });
}

void Executor::gather(const Step& step) {
  const Tensors mine = read(step.in);
  Slot& slot = slots_[step.out];
  slot.tensors = make_tensors(step.out);
  int64_t offset = 0;
  for (size_t i = 0; i < step.group.size(); ++i) {
    const int64_t tokens = tokens_of(step.out.data, share_of(step.out.chunks, step.group.size(), i));
    const Tensors rows = rows_of(slot.tensors, offset, tokens);
    offset += tokens;
    if (step.group[i] != group_.rank()) {
      send(mine, step.group[i], step, mine[0].scalar_type());
      receive(slot, rows, step.group[i], step);
    } else {
      for (size_t t = 0; t < rows.size(); ++t) rows[t].copy_(mine[t]);
    }
  }
}

void Executor::merge(const Step& step) {
  const Tensors whole = read(step.in);
  slots_.erase(step.in);
  Slot& slot = slots_[step.out];
  std::vector<Tensors> shares;  // in rank order, so that the result has the same bits every time
  int64_t offset = 0;
  for (size_t i = 0; i < step.group.size(); ++i) {
    const int64_t tokens = tokens_of(step.in.data, share_of(step.in.chunks, step.group.size(), i));
    const Tensors rows = rows_of(whole, offset, tokens);
    offset += tokens;
    if (step.group[i] == group_.rank()) {
      shares.push_back(rows);
      continue;
    }
    send(rows, step.group[i], step, job_.partial);
    shares.push_back(make_tensors(step.out, job_.partial));
    receive(slot, shares.back(), step.group[i], step);
  }
  slot.finish.push_back([this, block = step.out, shares] {
    Tensors result;
    for (const Tensors& share : shares) {
      Tensors more = share;
      more[0] = more[0].to(job_.accumulator);
      if (result.empty())
        for (const at::Tensor& t : more) result.push_back(t.clone());  // not a view that keeps the whole block alive
      else
        join(block.data, result, more);
    }
    add_to(block, std::move(result));
  });
}

// Own chunk of all heads -> the group's chunks of one slice. Key/value heads fewer than slices are copied.
void Executor::to_heads(const Step& step) {
  const at::Tensor mine = read(step.in)[0];
  Slot& slot = slots_[step.out];
  slot.tensors = {};
  const int slices = job_.slices;
  const int64_t total = mine.size(3);
  const int64_t heads =
      is_key_side(step.in.data) ? key_heads_of_slice(static_cast<int>(total), slices) : total / slices;
  int64_t tokens = tokens_of(step.out.data, step.out.chunks), offset = 0;
  slot.tensors.push_back(at::empty({tokens, mine.size(1), mine.size(2), heads, mine.size(4)}, mine.options()));
  for (int i = 0; i < slices; ++i) {
    const int64_t rows = tokens_of(step.out.data, {step.group[i]});
    const at::Tensor place = slot.tensors[0].narrow(0, offset, rows);
    offset += rows;
    const int64_t first_head = i * total / slices;
    const at::Tensor part = mine.narrow(3, first_head, heads);
    if (step.group[i] == group_.rank()) {
      place.copy_(part);
    } else {
      send({part.contiguous()}, step.group[i], step, mine.scalar_type());
      receive(slot, {place}, step.group[i], step);
    }
  }
}

// The group's chunks of one slice -> own chunk of all heads; gradients of copied key/value heads are summed.
void Executor::to_tokens(const Step& step) {
  const at::Tensor mine = read(step.in)[0];
  const int slices = job_.slices;
  const int64_t total = is_key_side(step.in.data) ? job_.problem.key_heads : job_.problem.heads;
  const int64_t heads = mine.size(3);
  const bool copied = heads * slices > total;
  const at::ScalarType element = job_.element.dtype().toScalarType(), type = copied ? job_.partial : element;
  Slot& slot = slots_[step.out];
  std::vector<at::Tensor> parts;
  int64_t offset = 0;
  for (int i = 0; i < slices; ++i) {
    const int64_t rows = tokens_of(step.in.data, {step.group[i]});
    const at::Tensor part = mine.narrow(0, offset, rows);
    offset += rows;
    if (step.group[i] == group_.rank()) {
      parts.push_back(part);
      continue;
    }
    send({part}, step.group[i], step, type);
    const int64_t own = tokens_of(step.in.data, {group_.rank()});
    parts.push_back(at::empty({own, mine.size(1), mine.size(2), heads, mine.size(4)}, mine.options().dtype(type)));
    receive(slot, {parts.back()}, step.group[i], step);
  }
  STARTRAIL_CHECK(slot.tensors.empty(), "the result of an all-to-all would replace ", to_text(step.out));
  slot.finish.push_back([this, block = step.out, parts, total, heads, slices, copied, element] {
    const at::Tensor& any = parts[0];
    const auto options = any.options().dtype(copied ? job_.accumulator : element);
    const at::Tensor result =
        at::zeros({tokens_of(block.data, block.chunks), any.size(1), any.size(2), total, any.size(4)}, options);
    for (int i = 0; i < slices; ++i) {
      const at::Tensor place = result.narrow(3, i * total / slices, heads);
      copied ? place.add_(parts[i]) : place.copy_(parts[i]);
    }
    slots_[block].tensors = {result};
  });
}

}  // namespace startrail

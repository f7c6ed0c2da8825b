#include "startrail/run/attention.h"

#include <ATen/ATen.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <torch/csrc/autograd/custom_function.h>
#include <cmath>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "startrail/base/error.h"
#include "startrail/plan/make.h"

namespace startrail {
namespace {

// Tokens first, as blocks are; no copy when the tokens are outermost in memory already (batch 1 of a model's [T, H,
// D]).
at::Tensor tokens_first(const at::Tensor& t) {
  return t
      .as_strided({t.size(2), 1, t.size(0), t.size(1), t.size(3)},
                  {t.stride(2), t.stride(2), t.stride(0), t.stride(1), t.stride(3)})
      .contiguous();
}
at::Tensor tokens_third(const at::Tensor& t, int64_t plane) {
  return t.as_strided({t.size(2), t.size(3), t.size(0), t.size(4)},
                      {t.stride(2), t.stride(3), t.stride(0), t.stride(4)}, t.storage_offset() + plane * t.stride(1));
}

void check_ranks(const AttentionOptions& options, int ranks) {
  if (options.grid.ranks() != ranks)
    throw UserError(cat("grid ", to_text(options.grid), " is for ", options.grid.ranks(), " ranks, but the group has ",
                        ranks, ": they must be equal"));
  check_layout(query_layout(options));
  check_layout(key_layout(options));
}

void check_type(const AttentionOptions& options, at::ScalarType type) {
  const bool narrow = options.partial == at::kBFloat16 && type != at::kDouble;
  if (options.partial != at::kFloat && !narrow)
    throw UserError(cat("partial results of ", type, " cannot be sent as ", options.partial,
                        "; valid: float32 (the default), and bfloat16 unless q is float64"));
  if (type != at::kFloat && type != at::kBFloat16 && type != at::kDouble)
    throw UserError(cat("attention does not compute ", type, "; valid types: float32, bfloat16, float64"));
}

// What must be true of the tensors, whatever the options.
void check_tensors(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v) {
  if (q.dim() == 4 && (q.size(0) < 1 || q.size(3) < 1))
    throw UserError(cat("q ", q.sizes(), " holds nothing: give a batch and a dim of 1 or more"));
  if (q.dim() != 4 || k.dim() != 4 || v.sizes() != k.sizes() || q.size(0) != k.size(0) || q.size(3) != k.size(3))
    throw UserError(cat("q ", q.sizes(), ", k ", k.sizes(), ", v ", v.sizes(),
                        " do not fit: give [batch, heads, local tokens, dim], with k and v alike"));
  const at::ScalarType type = q.scalar_type();
  if (k.scalar_type() != type || v.scalar_type() != type || k.device() != q.device() || v.device() != q.device())
    throw UserError(cat("q is ", type, " on ", q.device().str(), ", k ", k.scalar_type(), " on ", k.device().str(),
                        ", v ", v.scalar_type(), " on ", v.device().str(), ": they must be alike"));
}

// For q as a block has it.
ExecutorOptions executor_options(const AttentionOptions& options, const AttentionShape& shape, Pass pass) {
  Problem problem = make_problem(options, shape.batch, shape.heads, shape.key_heads, shape.dim, shape.type);
  Band band(options.mask, problem.queries.total_tokens(), problem.keys.total_tokens());
  const bool wide = shape.type == at::kDouble;
  return {.head = plan_head(options.grid, pass),
          .problem = std::move(problem),
          .band = std::move(band),
          .scale = options.scale != 0 ? options.scale : 1 / std::sqrt(static_cast<double>(shape.dim)),
          .element = at::TensorOptions(shape.type).device(shape.device),
          .accumulator = wide ? at::kDouble : at::kFloat,
          .partial = wide ? at::kDouble : options.partial,
          .kernel = &choose_kernel(options.kernel, shape.type, shape.device, shape.dim),
          .on_step = options.on_step,
          .layer = options.layer};
}

using Use = PreparedAttention::Use;

// Carried from forward to backward by autograd.
struct AttentionContext : torch::CustomClassHolder {
  AttentionContext(AttentionOptions options, std::shared_ptr<Group> group)
      : options(std::move(options)), group(std::move(group)) {}
  AttentionOptions options;
  std::shared_ptr<Group> group;
};

struct AttentionFunction : torch::autograd::Function<AttentionFunction> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& q, const at::Tensor& k,
                            const at::Tensor& v, const c10::intrusive_ptr<AttentionContext>& call) {
    AttentionResult result = attention_forward(q, k, v, call->options, call->group);
    context->save_for_backward({result.saved.q, result.saved.kv, result.saved.out, result.saved.lse});
    context->saved_data["key_heads"] = result.saved.key_heads;
    context->saved_data["call"] = c10::IValue::make_capsule(call);
    return result.out;
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list grads) {
    const auto holder = context->saved_data["call"].toCapsule();
    const auto& call = static_cast<const AttentionContext&>(*holder);
    const auto saved = context->get_saved_variables();
    auto [dq, dk, dv] =
        attention_backward(grads[0], {saved[0], saved[1], saved[2], saved[3], context->saved_data["key_heads"].toInt()},
                           call.options, call.group);
    return {dq, dk, dv, at::Tensor()};
  }
};

}  // namespace

Direction parse_direction(std::string_view text) {
  if (text == "auto") return Direction::automatic;
  if (text == "keys") return Direction::keys;
  if (text == "queries") return Direction::queries;
  throw UserError(cat("backward '", text, "' is not known; valid: auto, keys, queries"));
}

Layout query_layout(const AttentionOptions& options) {
  return {options.order, options.tokens, options.grid.ranks(), options.listed};
}
Layout key_layout(const AttentionOptions& options) {
  return {options.order, options.key_tokens > 0 ? options.key_tokens : options.tokens, options.grid.ranks(),
          options.key_listed ? options.key_listed : options.listed};
}

at::Tensor places_of(const Layout& layout, int rank) {
  std::vector<at::Tensor> places{at::empty({0}, at::kLong)};
  for (const Piece& piece : chunk_pieces(layout, rank))
    places.push_back(at::arange(piece.count, at::kLong) * piece.stride + piece.first);
  return at::cat(places);
}

Problem make_problem(const AttentionOptions& options, int64_t batch, int heads, int key_heads, int64_t dim,
                     at::ScalarType type) {
  return make_problem({.batch = batch,
                       .heads = heads,
                       .key_heads = key_heads,
                       .dim = dim,
                       .element_bytes = static_cast<int>(c10::elementSize(type)),
                       .partial_bytes = static_cast<int>(c10::elementSize(options.partial))},
                      query_layout(options), key_layout(options));
}

Pass backward_pass(const AttentionOptions& options, const Problem& problem) {
  switch (options.backward) {
    case Direction::keys:
      return Pass::backward_keys;
    case Direction::queries:
      return Pass::backward_queries;
    case Direction::automatic:
      break;
  }
  return cheaper_backward(options.grid, problem);
}

AttentionShape shape_of(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v) {
  check_tensors(q, k, v);
  return {q.size(0), static_cast<int>(q.size(1)), static_cast<int>(k.size(1)), q.size(3), q.scalar_type(), q.device()};
}

PreparedAttention::PreparedAttention(AttentionOptions options, const AttentionShape& shape, int rank, int ranks)
    : options_(std::move(options)), shape_(shape), rank_(rank), ranks_(ranks) {
  check_ranks(options_, ranks);
  check_type(options_, shape.type);
  check_heads(options_.grid, shape.heads, shape.key_heads);
  query_tokens_ = chunk_tokens(query_layout(options_), rank);
  key_tokens_ = chunk_tokens(key_layout(options_), rank);
}
PreparedAttention::~PreparedAttention() = default;

void PreparedAttention::check(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v) const {
  if (shape_of(q, k, v) != shape_)
    throw UserError(cat("q ", q.sizes(), " ", q.scalar_type(), " and k ", k.sizes(),
                        " are not of the shape that was prepared: batch ", shape_.batch, ", ", shape_.heads, " heads (",
                        shape_.key_heads, " key/value) of ", shape_.dim, ", ", shape_.type));
  const auto check = [&](const char* name, const at::Tensor& t, int64_t own, const Layout& layout) {
    if (t.size(2) != own)
      throw UserError(cat(name, " holds ", t.size(2), " tokens on rank ", rank_, ", but layout ", to_text(layout.order),
                          " of ", layout.tokens, " tokens over ", ranks_, " ranks gives it ", own));
  };
  check("q", q, query_tokens_, query_layout(options_));
  check("k", k, key_tokens_, key_layout(options_));
}

Block PreparedAttention::own_block(Data data) const {
  if (options_.grid.heads == 1) return {data, {rank_}, kAllHeads};
  return {data, line_through(options_.grid, rank_, Axis::heads),
          place_of(options_.grid, rank_)[static_cast<int>(Axis::heads)]};
}

const PreparedAttention::Part& PreparedAttention::part(Use use) const {
  Part& part = parts_[static_cast<size_t>(use)];
  std::lock_guard lock(part.mutex);
  if (part.script) return part;
  ExecutorOptions how = executor_options(options_, shape_, Pass::forward);
  if (use == Use::backward) how.head.pass = backward_pass(options_, how.problem);
  Steps steps = make_steps(options_.grid, how.head.pass, rank_);
  std::vector<Block> results = results_of(how.head, rank_);
  if (use == Use::restore) {  // only what trades tokens for heads
    std::erase_if(steps, [](const Step& step) { return step.op != Op::all_to_all || step.in.slice != kAllHeads; });
    results = {own_block(Data::query), own_block(Data::keys)};
  }
  auto script = make_script(how.head, std::move(steps), rank_, results);
  part.how = std::move(how);
  part.script = std::move(script);
  return part;
}

AttentionResult attention_forward(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                  const AttentionOptions& options, const std::shared_ptr<Group>& group) {
  return attention_forward(q, k, v, PreparedAttention(options, shape_of(q, k, v), group->rank(), group->size()),
                           *group);
}

AttentionResult attention_forward(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                  const PreparedAttention& prepared, Group& group) {
  prepared.check(q, k, v);
  const at::AutoDispatchBelowADInplaceOrView unrecorded;
  const int rank = group.rank();
  at::Tensor query = tokens_first(q), kv = at::cat({tokens_first(k), tokens_first(v)}, 1);
  Executor executor(prepared.how(Use::forward), group, prepared.script(Use::forward));
  // Moved, so that with heads they are freed when they have been traded.
  executor.put({Data::query, {rank}, kAllHeads}, {std::move(query)});
  executor.put({Data::keys, {rank}, kAllHeads}, {std::move(kv)});
  executor.run();
  const Tensors finished = executor.take(prepared.own_block(Data::out));
  AttentionResult result;
  result.saved = {executor.take(prepared.own_block(Data::query))[0], executor.take(prepared.own_block(Data::keys))[0],
                  finished[0].to(q.scalar_type()), finished[1], k.size(1)};
  const bool whole = prepared.options().grid.heads == 1;
  const at::Tensor out = whole ? result.saved.out : executor.take({Data::out, {rank}, kAllHeads})[0];
  executor.finish();
  result.out = tokens_third(out, 0);
  return result;
}

SavedAttention attention_restore(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const at::Tensor& out,
                                 const at::Tensor& lse, const AttentionOptions& options,
                                 const std::shared_ptr<Group>& group) {
  const PreparedAttention prepared(options, shape_of(q, k, v), group->rank(), group->size());
  return attention_restore(q, k, v, out, lse, prepared, *group);
}

SavedAttention attention_restore(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const at::Tensor& out,
                                 const at::Tensor& lse, const PreparedAttention& prepared, Group& group) {
  prepared.check(q, k, v);
  const at::AutoDispatchBelowADInplaceOrView unrecorded;
  const int rank = group.rank();
  const at::Tensor query = tokens_first(q), kv = at::cat({tokens_first(k), tokens_first(v)}, 1);
  if (prepared.options().grid.heads == 1) return {query, kv, out, lse, k.size(1)};
  Executor executor(prepared.how(Use::restore), group, prepared.script(Use::restore));
  executor.put({Data::query, {rank}, kAllHeads}, {query});
  executor.put({Data::keys, {rank}, kAllHeads}, {kv});
  executor.run();
  SavedAttention saved{executor.take(prepared.own_block(Data::query))[0],
                       executor.take(prepared.own_block(Data::keys))[0], out, lse, k.size(1)};
  executor.finish();
  return saved;
}

std::array<at::Tensor, 3> attention_backward(const at::Tensor& dout, const SavedAttention& saved,
                                             const AttentionOptions& options, const std::shared_ptr<Group>& group) {
  const AttentionShape shape{saved.q.size(2),
                             static_cast<int>(saved.q.size(3)) * options.grid.heads,
                             static_cast<int>(saved.key_heads),
                             saved.q.size(4),
                             saved.q.scalar_type(),
                             saved.q.device()};
  return attention_backward(dout, saved, PreparedAttention(options, shape, group->rank(), group->size()), *group);
}

std::array<at::Tensor, 3> attention_backward(const at::Tensor& dout, const SavedAttention& saved,
                                             const PreparedAttention& prepared, Group& group) {
  const at::AutoDispatchBelowADInplaceOrView unrecorded;
  const int rank = group.rank();
  const std::array<int64_t, 4> like{saved.q.size(2), saved.q.size(3) * prepared.options().grid.heads,
                                    prepared.query_tokens(), saved.q.size(4)};
  if (dout.sizes() != at::IntArrayRef(like))
    throw UserError(cat("dout ", dout.sizes(), " does not fit: give ", at::IntArrayRef(like), ", like out"));
  Executor executor(prepared.how(Use::backward), group, prepared.script(Use::backward));
  executor.put({Data::out_grad, {rank}, kAllHeads}, {tokens_first(dout.to(saved.q.scalar_type()))});
  executor.put(prepared.own_block(Data::keys), {saved.kv});
  executor.put(prepared.own_block(Data::saved), {saved.q, saved.out, saved.lse});
  executor.run();
  const at::Tensor dq = executor.take({Data::query_grad, {rank}, kAllHeads})[0];
  const at::Tensor dkv = executor.take({Data::keys_grad, {rank}, kAllHeads})[0];
  executor.finish();
  const at::ScalarType type = saved.q.scalar_type();
  return {tokens_third(dq, 0).to(type), tokens_third(dkv, 0).to(type), tokens_third(dkv, 1).to(type)};
}

at::Tensor attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const AttentionOptions& options,
                     const std::shared_ptr<Group>& group) {
  return AttentionFunction::apply(q, k, v, c10::make_intrusive<AttentionContext>(options, group));
}

}  // namespace startrail

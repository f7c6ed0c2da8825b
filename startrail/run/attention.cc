#include "startrail/run/attention.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>
#include <cmath>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "startrail/base/error.h"
#include "startrail/plan/make.h"

namespace startrail {
namespace {

// Tokens first, as blocks are; no copy when the tokens are outermost in memory already (batch 1 of a model's [T, H,
// D]).
at::Tensor tokens_first(const at::Tensor& t) { return t.permute({2, 0, 1, 3}).unsqueeze(1).contiguous(); }
at::Tensor tokens_third(const at::Tensor& t, int64_t plane) { return t.select(1, plane).permute({1, 2, 0, 3}); }

void check_group(const AttentionOptions& options, const Group& group) {
  if (options.grid.ranks() != group.size())
    throw UserError(cat("grid ", to_text(options.grid), " is for ", options.grid.ranks(), " ranks, but the group has ",
                        group.size(), ": they must be equal"));
  check_layout(query_layout(options));
  check_layout(key_layout(options));
}

void check_partial(const AttentionOptions& options, at::ScalarType type) {
  const bool narrow = options.partial == at::kBFloat16 && type != at::kDouble;
  if (options.partial != at::kFloat && !narrow)
    throw UserError(cat("partial results of ", type, " cannot be sent as ", options.partial,
                        "; valid: float32 (the default), and bfloat16 unless q is float64"));
}

void check_inputs(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const AttentionOptions& options,
                  const Group& group) {
  check_group(options, group);
  check_partial(options, q.scalar_type());
  if (q.dim() == 4 && (q.size(0) < 1 || q.size(3) < 1))
    throw UserError(cat("q ", q.sizes(), " holds nothing: give a batch and a dim of 1 or more"));
  if (q.dim() != 4 || k.dim() != 4 || v.sizes() != k.sizes() || q.size(0) != k.size(0) || q.size(3) != k.size(3))
    throw UserError(cat("q ", q.sizes(), ", k ", k.sizes(), ", v ", v.sizes(),
                        " do not fit: give [batch, heads, local tokens, dim], with k and v alike"));
  const at::ScalarType type = q.scalar_type();
  if (k.scalar_type() != type || v.scalar_type() != type || k.device() != q.device() || v.device() != q.device())
    throw UserError(cat("q is ", type, " on ", q.device().str(), ", k ", k.scalar_type(), " on ", k.device().str(),
                        ", v ", v.scalar_type(), " on ", v.device().str(), ": they must be alike"));
  if (type != at::kFloat && type != at::kBFloat16 && type != at::kDouble)
    throw UserError(cat("attention does not compute ", type, "; valid types: float32, bfloat16, float64"));
  check_heads(options.grid, static_cast<int>(q.size(1)), static_cast<int>(k.size(1)));
  const auto check_tokens = [&](const char* name, const at::Tensor& t, const Layout& layout) {
    const int64_t own = chunk_tokens(layout, group.rank());
    if (t.size(2) != own)
      throw UserError(cat(name, " holds ", t.size(2), " tokens on rank ", group.rank(), ", but layout ",
                          to_text(layout.order), " of ", layout.tokens, " tokens over ", group.size(),
                          " ranks gives it ", own));
  };
  check_tokens("q", q, query_layout(options));
  check_tokens("k", k, key_layout(options));
}

// For q as a block has it.
ExecutorOptions executor_options(const AttentionOptions& options, const at::Tensor& q, int64_t heads,
                                 int64_t key_heads) {
  const int64_t batch = q.size(2), dim = q.size(4);
  const at::ScalarType type = q.scalar_type();
  Problem problem = make_problem(options, batch, static_cast<int>(heads), static_cast<int>(key_heads), dim, type);
  Band band(options.mask, problem.queries.total_tokens(), problem.keys.total_tokens());
  return {.head = plan_head(options.grid, Pass::forward),
          .problem = std::move(problem),
          .band = std::move(band),
          .scale = options.scale != 0 ? options.scale : 1 / std::sqrt(static_cast<double>(dim)),
          .element = q.options(),
          .accumulator = type == at::kDouble ? at::kDouble : at::kFloat,
          .partial = type == at::kDouble ? at::kDouble : options.partial,
          .kernel = &choose_kernel(options.kernel, type, q.device(), dim),
          .on_step = options.on_step,
          .layer = options.layer};
}

Block own_block(Data data, const AttentionOptions& options, const Group& group) {
  if (options.grid.heads == 1) return {data, {group.rank()}, kAllHeads};
  return {data, line_through(options.grid, group.rank(), Axis::heads),
          place_of(options.grid, group.rank())[static_cast<int>(Axis::heads)]};
}

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

AttentionResult attention_forward(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                  const AttentionOptions& options, const std::shared_ptr<Group>& group) {
  check_inputs(q, k, v, options, *group);
  const at::NoGradGuard no_grad;
  const int rank = group->rank();
  at::Tensor query = tokens_first(q), kv = at::cat({tokens_first(k), tokens_first(v)}, 1);
  const ExecutorOptions how = executor_options(options, query, q.size(1), k.size(1));
  Executor executor(how, *group, make_steps(options.grid, Pass::forward, rank), results_of(how.head, rank));
  // Moved, so that with heads they are freed when they have been traded.
  executor.put({Data::query, {rank}, kAllHeads}, {std::move(query)});
  executor.put({Data::keys, {rank}, kAllHeads}, {std::move(kv)});
  executor.run();
  const Tensors finished = executor.take(own_block(Data::out, options, *group));
  AttentionResult result;
  result.saved = {executor.take(own_block(Data::query, options, *group))[0],
                  executor.take(own_block(Data::keys, options, *group))[0], finished[0].to(q.scalar_type()),
                  finished[1], k.size(1)};
  const at::Tensor out = options.grid.heads == 1 ? result.saved.out : executor.take({Data::out, {rank}, kAllHeads})[0];
  executor.finish();
  result.out = tokens_third(out, 0);
  return result;
}

SavedAttention attention_restore(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const at::Tensor& out,
                                 const at::Tensor& lse, const AttentionOptions& options,
                                 const std::shared_ptr<Group>& group) {
  check_inputs(q, k, v, options, *group);
  const at::NoGradGuard no_grad;
  const int rank = group->rank();
  const at::Tensor query = tokens_first(q), kv = at::cat({tokens_first(k), tokens_first(v)}, 1);
  if (options.grid.heads == 1) return {query, kv, out, lse, k.size(1)};
  Steps trades = make_steps(options.grid, Pass::forward, rank);
  std::erase_if(trades, [](const Step& step) { return step.op != Op::all_to_all || step.in.slice != kAllHeads; });
  const Block own_query = own_block(Data::query, options, *group), own_keys = own_block(Data::keys, options, *group);
  const ExecutorOptions how = executor_options(options, query, q.size(1), k.size(1));
  Executor executor(how, *group, std::move(trades), {own_query, own_keys});
  executor.put({Data::query, {rank}, kAllHeads}, {query});
  executor.put({Data::keys, {rank}, kAllHeads}, {kv});
  executor.run();
  SavedAttention saved{executor.take(own_query)[0], executor.take(own_keys)[0], out, lse, k.size(1)};
  executor.finish();
  return saved;
}

std::array<at::Tensor, 3> attention_backward(const at::Tensor& dout, const SavedAttention& saved,
                                             const AttentionOptions& options, const std::shared_ptr<Group>& group) {
  check_group(options, *group);
  const at::NoGradGuard no_grad;
  const int rank = group->rank(), slices = options.grid.heads;
  const int64_t heads = saved.q.size(3) * slices, own = chunk_tokens(query_layout(options), rank);
  if (dout.sizes() != at::IntArrayRef({saved.q.size(2), heads, own, saved.q.size(4)}))
    throw UserError(cat("dout ", dout.sizes(), " does not fit: give [", saved.q.size(2), ", ", heads, ", ", own, ", ",
                        saved.q.size(4), "], like out"));
  ExecutorOptions how = executor_options(options, saved.q, heads, saved.key_heads);
  how.head.pass = backward_pass(options, how.problem);
  Executor executor(how, *group, make_steps(options.grid, how.head.pass, rank), results_of(how.head, rank));
  executor.put({Data::out_grad, {rank}, kAllHeads}, {tokens_first(dout.to(saved.q.scalar_type()))});
  executor.put(own_block(Data::keys, options, *group), {saved.kv});
  executor.put(own_block(Data::saved, options, *group), {saved.q, saved.out, saved.lse});
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

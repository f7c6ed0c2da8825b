// StarTrail as torch operators: plain functions of tensors, numbers and texts, so that torch.compile, checkpointing and
// fake tensors see one node each. The group is found by its name. No Python here, and no scheme either.
#define XXH_INLINE_ALL
#include <ATen/ATen.h>
#include <ATen/autocast_mode.h>
#include <torch/csrc/autograd/autograd_not_implemented_fallback.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>
#include <xxhash.h>
#include <torch/csrc/distributed/c10d/GroupRegistry.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include "python/operators/kept.h"
#include "python/operators/plan.h"
#include "startrail/base/error.h"
#include "startrail/base/version.h"
#include "startrail/run/comm/reason.h"

namespace startrail {
namespace {

// The arguments that every operator has after its tensors, once as the schema says them and once as C++ does.
#define CALL_SCHEMA                                                                                           \
  "str group, str grid, str layout, SymInt tokens, SymInt key_tokens, SymInt[] pieces, SymInt[] key_pieces, " \
  "bool causal, int window, SymInt[] documents, int prefix, int padding, float scale, str backward, str kernel"
#define CALL_PARAMETERS                                                                                           \
  c10::string_view group, c10::string_view grid, c10::string_view layout, int64_t tokens, int64_t key_tokens,     \
      at::IntArrayRef pieces, at::IntArrayRef key_pieces, bool causal, int64_t window, at::IntArrayRef documents, \
      int64_t prefix, int64_t padding, double scale, c10::string_view backward, c10::string_view kernel
#define CALL_SYMBOLS                                                                                                  \
  c10::string_view group, c10::string_view grid, c10::string_view layout, c10::SymInt tokens, c10::SymInt key_tokens, \
      c10::SymIntArrayRef pieces, c10::SymIntArrayRef key_pieces, bool causal, int64_t window,                        \
      c10::SymIntArrayRef documents, int64_t prefix, int64_t padding, double scale, c10::string_view backward,        \
      c10::string_view kernel
#define CALL_ARGUMENTS                                                                                            \
  group, grid, layout, tokens, key_tokens, pieces, key_pieces, causal, window, documents, prefix, padding, scale, \
      backward, kernel

std::string text_of(c10::string_view text) { return {text.data(), text.size()}; }

CallOptions call_options(CALL_PARAMETERS) {
  static_cast<void>(group);
  return {.grid = text_of(grid),
          .layout = text_of(layout),
          .tokens = tokens,
          .key_tokens = key_tokens,
          .pieces = pieces.vec(),
          .key_pieces = key_pieces.vec(),
          .mask = {causal, window, documents.vec(), prefix, padding},
          .scale = scale,
          .backward = text_of(backward),
          .kernel = text_of(kernel)};
}

// Errors as Python knows them: ValueError, and torch.distributed.DistBackendError, which is startrail.ClusterError.
template <class Body>
auto guarded(const Body& body) {
  try {
    return body();
  } catch (const UserError& error) {
    TORCH_CHECK_VALUE(false, error.what());
  } catch (const ClusterError& error) {
    TORCH_CHECK_WITH(DistBackendError, false, error.what());
  }
}

// Runs a call that all ranks make. What fails on this rank alone ends the waits of the others.
template <class Body>
auto together(KeptGroup& kept, const KeptCall& call, size_t pass, const Body& body) {
  const AdoptedGroup::Call scope(kept.adopted(), call.what, call.hash + pass);
  try {
    return body();
  } catch (const ClusterError&) {
    throw;
  } catch (const std::exception& error) {
    kept.adopted().fail(reason_of(error));
    throw;
  }
}

using Forward = std::tuple<at::Tensor, at::Tensor, std::vector<at::Tensor>>;
using Backward = std::tuple<at::Tensor, at::Tensor, at::Tensor>;

// out, lse and, with heads in the grid, what the slice keeps (q, kv, out). Nothing returned shares memory with an input
// or with another result: torch's rule for functional operators.
Forward forward(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, CALL_PARAMETERS) {
  return guarded([&] {
    const auto kept = kept_group(text_of(group), q.device());
    const auto call = kept->find(call_options(CALL_ARGUMENTS), q, k, v);
    return together(*kept, *call, 0, [&] {
      AttentionResult r = attention_forward(q, k, v, *call->prepared, kept->group());
      std::vector<at::Tensor> slice;
      if (call->prepared->options().grid.heads > 1) slice = {r.saved.q, r.saved.kv, r.saved.out};
      for (at::Tensor& t : slice)
        if (t.is_alias_of(q) || t.is_alias_of(k) || t.is_alias_of(r.out)) t = t.clone();
      return Forward(r.out, r.saved.lse, slice);
    });
  });
}

Backward backward_pass_of(const at::Tensor& dout, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                          const at::Tensor& out, const at::Tensor& lse, at::TensorList slice, CALL_PARAMETERS) {
  return guarded([&] {
    const auto kept = kept_group(text_of(group), q.device());
    const auto call = kept->find(call_options(CALL_ARGUMENTS), q, k, v);
    return together(*kept, *call, 1, [&] {
      SavedAttention saved;
      if (call->prepared->options().grid.heads > 1)
        saved = {slice[0], slice[1], slice[2], lse, k.size(1)};
      else  // out as a block: tokens first; it was made so, and this is a view then
        saved = attention_restore(q, k, v, out.permute({2, 0, 1, 3}).unsqueeze(1).contiguous(), lse, *call->prepared,
                                  kept->group());
      auto [dq, dk, dv] = attention_backward(dout, saved, *call->prepared, kept->group());
      return Backward(dq, dk.clone(), dv.clone());  // dk and dv are two planes of one tensor
    });
  });
}

// --- Shapes alone, for compilers

at::Tensor empty_tokens_first(const at::Tensor& like) {
  return at::empty_symint({like.sym_size(2), like.sym_size(0), like.sym_size(1), like.sym_size(3)}, like.options())
      .permute({1, 2, 0, 3});
}

Forward fake_forward(const at::Tensor& q, const at::Tensor& k, const at::Tensor&, CALL_SYMBOLS) {
  return guarded([&] {
    static_cast<void>(causal), static_cast<void>(window), static_cast<void>(documents), static_cast<void>(prefix);
    static_cast<void>(padding), static_cast<void>(scale), static_cast<void>(backward), static_cast<void>(kernel);
    TORCH_CHECK_VALUE(q.dim() == 4 && k.dim() == 4, "q ", q.sym_sizes(), " and k ", k.sym_sizes(),
                      " do not fit: give [batch, heads, local tokens, dim]");
    const auto processes = c10d::resolve_process_group(text_of(group));
    const int ranks = processes->getSize(), rank = processes->getRank();
    const c10::SymInt heads = q.sym_size(1), key_heads = k.sym_size(1);
    const auto number = [](const c10::SymInt& size) { return size.guard_int(__FILE__, __LINE__); };
    const auto grid_shape = [&] {
      return AttentionShape{1,
                            static_cast<int>(number(heads)),
                            static_cast<int>(number(key_heads)),
                            number(q.sym_size(3)),
                            q.scalar_type(),
                            at::kCPU};
    };
    const Grid used = grid == "auto" ? grid_of("auto", grid_shape(), ranks) : parse_grid(text_of(grid), ranks);
    const auto wide = q.options().dtype(q.scalar_type() == at::kDouble ? at::kDouble : at::kFloat);
    const at::Tensor out = empty_tokens_first(q);
    const c10::SymInt batch = q.sym_size(0), dim = q.sym_size(3);
    if (used.heads == 1) return Forward(out, at::empty_symint({q.sym_size(2), 1, batch, heads}, wide), {});
    // How many tokens the heads group has together depends on the length, which is therefore fixed here.
    const auto held = [&](const c10::SymInt& length, c10::SymIntArrayRef listed) {
      std::vector<int64_t> lists;
      for (const c10::SymInt& one : listed) lists.push_back(number(one));
      return layout_of(text_of(layout), number(length), lists, ranks);
    };
    const Layout queries = held(tokens, pieces);
    const c10::SymInt shared = chunk_tokens(queries, line_through(used, rank, Axis::heads));
    const Layout keys = key_tokens == 0 ? queries : held(key_tokens, key_pieces.empty() ? pieces : key_pieces);
    const c10::SymInt shared_keys = chunk_tokens(keys, line_through(used, rank, Axis::heads));
    const c10::SymInt slice_heads = heads / used.heads;
    const int slice_keys = key_heads_of_slice(static_cast<int>(number(key_heads)), used.heads);
    return Forward(out, at::empty_symint({shared, 1, batch, slice_heads}, wide),
                   {at::empty_symint({shared, 1, batch, slice_heads, dim}, q.options()),
                    at::empty_symint({shared_keys, 2, batch, slice_keys, dim}, q.options()),
                    at::empty_symint({shared, 1, batch, slice_heads, dim}, q.options())});
  });
}

Backward fake_backward(const at::Tensor&, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                       const at::Tensor&, const at::Tensor&, at::TensorList, CALL_SYMBOLS) {
  static_cast<void>(std::make_tuple(group, grid, layout, tokens, key_tokens, pieces, key_pieces, causal, window,
                                    documents, prefix, padding, scale, backward, kernel));
  return {empty_tokens_first(q), empty_tokens_first(k), empty_tokens_first(v)};
}

// --- Gradients: in C++ and through the dispatcher both ways, so that no Python runs in a step and a tracer sees two
// operators.

using ForwardOperator = Forward(const at::Tensor&, const at::Tensor&, const at::Tensor&, CALL_SYMBOLS);
using BackwardOperator = Backward(const at::Tensor&, const at::Tensor&, const at::Tensor&, const at::Tensor&,
                                  const at::Tensor&, const at::Tensor&, at::TensorList, CALL_SYMBOLS);

const auto& forward_operator() {
  static const auto op =
      c10::Dispatcher::singleton().findSchemaOrThrow("startrail::attention_forward", "").typed<ForwardOperator>();
  return op;
}
const auto& backward_operator() {
  static const auto op =
      c10::Dispatcher::singleton().findSchemaOrThrow("startrail::attention_backward", "").typed<BackwardOperator>();
  return op;
}

// A call's arguments, carried from forward to backward.
struct Arguments {
  std::string group, grid, layout;
  c10::SymInt tokens, key_tokens;
  std::vector<c10::SymInt> pieces, key_pieces;
  bool causal;
  int64_t window;
  std::vector<c10::SymInt> documents;
  int64_t prefix, padding;
  double scale;
  std::string backward, kernel;
};

struct Differentiable : torch::autograd::Function<Differentiable> {
  static torch::autograd::variable_list forward(torch::autograd::AutogradContext* context, const at::Tensor& q,
                                                const at::Tensor& k, const at::Tensor& v, const Arguments& a) {
    const at::AutoDispatchBelowADInplaceOrView below;
    auto [out, lse, slice] =
        forward_operator().call(q, k, v, a.group, a.grid, a.layout, a.tokens, a.key_tokens, a.pieces, a.key_pieces,
                                a.causal, a.window, a.documents, a.prefix, a.padding, a.scale, a.backward, a.kernel);
    torch::autograd::variable_list saved{q, k, v, out, lse}, results{out, lse};
    saved.insert(saved.end(), slice.begin(), slice.end());
    results.insert(results.end(), slice.begin(), slice.end());
    context->save_for_backward(saved);
    context->mark_non_differentiable({results.begin() + 1, results.end()});
    auto& data = context->saved_data;
    data["group"] = a.group, data["grid"] = a.grid, data["layout"] = a.layout, data["tokens"] = a.tokens;
    data["key_tokens"] = a.key_tokens, data["causal"] = a.causal, data["window"] = a.window;
    data["prefix"] = a.prefix, data["padding"] = a.padding, data["scale"] = a.scale;
    data["backward"] = a.backward, data["kernel"] = a.kernel;
    data["pieces"] = a.pieces, data["key_pieces"] = a.key_pieces, data["documents"] = a.documents;
    return results;
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list grads) {
    const auto saved = context->get_saved_variables();
    auto& data = context->saved_data;
    // A rank whose loss does not read its output takes part all the same.
    const at::Tensor dout = grads[0].defined() ? grads[0] : at::zeros_like(saved[3]);
    const std::vector<at::Tensor> slice(saved.begin() + 5, saved.end());
    const auto list = [&](const char* name) { return data[name].toSymIntVector(); };
    const auto pieces = list("pieces"), key_pieces = list("key_pieces"), documents = list("documents");
    auto [dq, dk, dv] = backward_operator().call(
        dout, saved[0], saved[1], saved[2], saved[3], saved[4], slice, data["group"].toStringView(),
        data["grid"].toStringView(), data["layout"].toStringView(), data["tokens"].toSymInt(),
        data["key_tokens"].toSymInt(), pieces, key_pieces, data["causal"].toBool(), data["window"].toInt(), documents,
        data["prefix"].toInt(), data["padding"].toInt(), data["scale"].toDouble(), data["backward"].toStringView(),
        data["kernel"].toStringView());
    return {dq, dk, dv, at::Tensor()};
  }
};

Forward differentiable(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, CALL_SYMBOLS) {
  for (const at::Tensor* one : {&q, &k, &v})
    TORCH_CHECK_VALUE(!one->_fw_grad(/*level=*/0).defined(),
                      "startrail.attention has no forward-mode derivative: use backward()");
  if (!at::GradMode::is_enabled() || !(q.requires_grad() || k.requires_grad() || v.requires_grad())) {
    const at::AutoDispatchBelowADInplaceOrView below;
    return forward_operator().call(q, k, v, CALL_ARGUMENTS);
  }
  const Arguments arguments{text_of(group),
                            text_of(grid),
                            text_of(layout),
                            std::move(tokens),
                            std::move(key_tokens),
                            pieces.vec(),
                            key_pieces.vec(),
                            causal,
                            window,
                            documents.vec(),
                            prefix,
                            padding,
                            scale,
                            text_of(backward),
                            text_of(kernel)};
  const auto results = Differentiable::apply(q, k, v, arguments);
  return {results[0], results[1], {results.begin() + 2, results.end()}};
}

// Under autocast: operands in its type, as for scaled_dot_product_attention.
template <c10::DeviceType device>
Forward cast_forward(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, CALL_SYMBOLS) {
  const c10::impl::ExcludeDispatchKeyGuard none(at::autocast::get_autocast_dispatch_key_from_device_type(device));
  const auto type = at::autocast::get_autocast_dtype(device);
  const auto cast = [&](const at::Tensor& t) { return at::autocast::cached_cast(type, t, device); };
  return forward_operator().call(cast(q), cast(k), cast(v), CALL_ARGUMENTS);
}

void refuse_transform(const c10::OperatorHandle&, torch::jit::Stack*) {
  TORCH_CHECK_VALUE(
      false,
      "StarTrail's operators cannot be transformed by torch.func (vmap, grad, jvp and so on): use autograd, "
      "and the batch dimension of q, k and v");
}

// --- The rest

// The tokens that this rank holds, in its order. Sends nothing, and is made of torch's own operators, so compilers see
// through it.
at::Tensor positions(int64_t tokens, c10::string_view group, c10::string_view layout, at::IntArrayRef pieces) {
  return guarded([&] {
    const auto processes = c10d::resolve_process_group(text_of(group));
    return places_of(layout_of(text_of(layout), tokens, pieces.vec(), processes->getSize()), processes->getRank());
  });
}

// How many tokens each rank holds.
std::vector<int64_t> chunks(int64_t tokens, c10::string_view group, c10::string_view layout, at::IntArrayRef pieces) {
  return guarded([&] {
    const int ranks = c10d::resolve_process_group(text_of(group))->getSize();
    const Layout held = layout_of(text_of(layout), tokens, pieces.vec(), ranks);
    std::vector<int64_t> all;
    for (int rank = 0; rank < ranks; ++rank) all.push_back(chunk_tokens(held, rank));
    return all;
  });
}

// Everyone's rows of dimension 0, in the order of the sequence.
at::Tensor gather(const at::Tensor& mine, c10::string_view group, int64_t tokens, c10::string_view layout,
                  at::IntArrayRef pieces) {
  return guarded([&] {
    const auto kept = kept_group(text_of(group), mine.device());
    Group& all = kept->group();
    const Layout held = layout_of(text_of(layout), tokens, pieces.vec(), all.size());
    const at::Tensor own = mine.contiguous();
    const bool fits = own.dim() > 0 && own.size(0) == chunk_tokens(held, all.rank());
    const auto call = kept->agree_on(cat("gather of ", tokens, " tokens, ", text_of(layout), ", ", own.scalar_type(),
                                         " of ", own.dim() > 0 ? own.sizes().slice(1) : own.sizes()),
                                     fits ? ""
                                          : cat("a tensor ", own.sizes(), " was given to gather on rank ", all.rank(),
                                                ", which holds ", chunk_tokens(held, all.rank()), " tokens"));
    return together(*kept, *call, 0, [&] {
      std::vector<int64_t> sizes = own.sizes().vec();
      sizes[0] = tokens;
      at::Tensor whole = at::empty(sizes, own.options());
      std::vector<at::Tensor> parts;
      std::vector<Post> posts;
      for (int rank = 0; rank < all.size(); ++rank) {
        sizes[0] = chunk_tokens(held, rank);
        parts.push_back(rank == all.rank() ? own : at::empty(sizes, own.options()));
        if (rank == all.rank()) continue;
        if (own.numel() > 0) posts.push_back({Post::Way::send, own, rank, kGatherTag, Traffic::gather});
        if (parts[rank].numel() > 0)
          posts.push_back({Post::Way::receive, parts[rank], rank, kGatherTag, Traffic::gather});
      }
      all.channel().wait(all.channel().post(posts));
      for (int rank = 0; rank < all.size(); ++rank)
        whole.index_copy_(0, places_of(held, rank).to(own.device()), parts[rank]);
      return whole;
    });
  });
}

// How many queries and keys each rank holds, all queries first.
std::vector<int64_t> local_lengths(int64_t queries, int64_t keys, c10::string_view group) {
  return guarded([&] { return kept_group(text_of(group), at::kCPU)->lengths(queries, keys); });
}

// All ranks cut the same batch in the same way: the same tensors, to the bit. UserError on all when they do not, or
// when one has a refusal. True when it looks as if no attention of ours were to run on what was cut.
bool agree_on_batch(const std::vector<at::Tensor>& tensors, c10::string_view how, c10::string_view refusal,
                    c10::string_view group) {
  return guarded([&] {
    const auto hash = [](const void* data, size_t bytes) { return cat("#", XXH3_64bits(data, bytes) % 1000000007); };
    const auto kept = kept_group(text_of(group), at::kCPU);
    std::string what = "a cut of ";
    if (kept->group().size() > 1)
      for (const at::Tensor& tensor : tensors) {
        const at::Tensor here = tensor.detach().to(at::kCPU).contiguous();
        if (here.nbytes() > 0 && here.const_data_ptr() == nullptr)
          throw UserError("a batch without data, as compilers trace with, cannot be compared: cut it outside of them");
        what += cat(here.scalar_type(), " ", here.sizes(), " ", hash(here.const_data_ptr(), here.nbytes()), ", ");
      }
    constexpr size_t kShown = 200;  // of what may list thousands of documents
    what += text_of(how.substr(0, kShown));
    if (how.size() > kShown) what += cat("... ", hash(how.data(), how.size()));
    kept->agree_on(what, text_of(refusal),
                   ": every rank of a group needs the same batch, whole; a sampler that gives ranks different rows "
                   "is for the data ranks only");
    return kept->count_batch();
  });
}

std::vector<int64_t> sent_bytes(c10::string_view group) {
  return guarded([&] {
    const auto known = known_group(text_of(group), at::kCPU);
    const Volume sent = known ? known->group().meter().counts().sent() : Volume{};
    return std::vector<int64_t>(std::begin(sent.bytes), std::end(sent.bytes));
  });
}

std::string plan(int64_t ranks, int64_t batch, int64_t heads, int64_t key_heads, int64_t dim, at::ScalarType type,
                 CALL_PARAMETERS) {
  return guarded([&] {
    const auto check = [](int64_t value, int64_t most, const char* what) {
      if (value < 1 || value > most) throw UserError(cat(value, " ", what, " cannot be planned: give 1 to ", most));
    };
    check(ranks, 4096, "ranks");
    check(batch, 1 << 10, "sequences");
    check(heads, 1 << 10, "heads");
    check(key_heads, 1 << 10, "key/value heads");
    check(dim, 1 << 10, "numbers a head");
    const AttentionShape shape{batch, static_cast<int>(heads), static_cast<int>(key_heads), dim, type, at::kCPU};
    return plan_json(attention_options(call_options(CALL_ARGUMENTS), shape, static_cast<int>(ranks)), shape);
  });
}

TORCH_LIBRARY(startrail, m) {
  m.def("attention_forward(Tensor q, Tensor k, Tensor v, " CALL_SCHEMA ") -> (Tensor out, Tensor lse, Tensor[] slice)");
  m.def(
      "attention_backward(Tensor dout, Tensor q, Tensor k, Tensor v, Tensor out, Tensor lse, Tensor[] "
      "slice, " CALL_SCHEMA ") -> (Tensor dq, Tensor dk, Tensor dv)");
  m.def("positions(int tokens, str group, str layout, int[] pieces) -> Tensor", positions);
  m.def("chunks(int tokens, str group, str layout, int[] pieces) -> int[]", chunks);
  m.def("gather(Tensor mine, str group, int tokens, str layout, int[] pieces) -> Tensor");
  m.def("plan(int ranks, int batch, int heads, int key_heads, int dim, ScalarType type, " CALL_SCHEMA ") -> str", plan);
  m.def("local_lengths(int queries, int keys, str group) -> int[]", local_lengths);
  m.def("agree_on_batch(Tensor[] tensors, str how, str refusal, str group) -> bool", agree_on_batch);
  m.def("sent_bytes(str group) -> int[]", sent_bytes);
  m.def("forget() -> ()", forget_groups);
  m.def("version() -> str", [] { return std::string(kVersion); });
}
TORCH_LIBRARY_IMPL(startrail, CPU, m) {
  m.impl("attention_forward", forward);
  m.impl("attention_backward", backward_pass_of);
  m.impl("gather", gather);
}
TORCH_LIBRARY_IMPL(startrail, Meta, m) {
  m.impl("attention_forward", fake_forward);
  m.impl("attention_backward", fake_backward);
}
TORCH_LIBRARY_IMPL(startrail, Autograd, m) {
  m.impl("attention_forward", differentiable);
  m.impl("attention_backward", torch::autograd::autogradNotImplementedFallback());
  m.impl("gather", torch::autograd::autogradNotImplementedFallback());
}
TORCH_LIBRARY_IMPL(startrail, FuncTorchDynamicLayerFrontMode, m) {
  for (const char* name : {"attention_forward", "attention_backward", "gather"})
    m.impl(name, torch::CppFunction::makeFromBoxedFunction<&refuse_transform>());
}
TORCH_LIBRARY_IMPL(startrail, AutocastCPU, m) { m.impl("attention_forward", cast_forward<c10::DeviceType::CPU>); }
TORCH_LIBRARY_IMPL(startrail, AutocastCUDA, m) { m.impl("attention_forward", cast_forward<c10::DeviceType::CUDA>); }

}  // namespace
}  // namespace startrail

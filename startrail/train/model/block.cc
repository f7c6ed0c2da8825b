#include "startrail/train/model/block.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>

namespace startrail {
namespace {

// [1, heads, tokens, dim] -> [tokens, heads * dim].
at::Tensor rows_of(const at::Tensor& out) { return out.squeeze(0).transpose(0, 1).flatten(1); }

// Carried from forward to backward by autograd.
struct Call : torch::CustomClassHolder {
  Call(BlockParts block, Sequence sequence) : block(std::move(block)), sequence(std::move(sequence)) {}
  BlockParts block;
  Sequence sequence;
};

at::Tensor leaf(const at::Tensor& t) { return t.detach().requires_grad_(); }

struct Checkpointed : torch::autograd::Function<Checkpointed> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x, at::TensorList weights,
                            const c10::intrusive_ptr<Call>& call) {
    const Weights all = weights.vec();
    const Sequence& sequence = call->sequence;
    const auto [q, k, v] = call->block.before(x, all);
    AttentionResult result = attention_forward(q, k, v, sequence.attention, sequence.group);
    torch::autograd::variable_list saved{x, result.out, result.saved.out, result.saved.lse};
    saved.insert(saved.end(), all.begin(), all.end());
    context->save_for_backward(std::move(saved));
    context->saved_data["call"] = c10::IValue::make_capsule(call);
    return call->block.after(x, rows_of(result.out), all);
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list grads) {
    const auto holder = context->saved_data["call"].toCapsule();
    const auto& call = static_cast<const Call&>(*holder);
    const Sequence& sequence = call.sequence;
    const auto saved = context->get_saved_variables();
    const at::Tensor &saved_out = saved[2], &lse = saved[3];
    const at::AutoGradMode with_gradients(true);
    const at::Tensor x = leaf(saved[0]), out = leaf(saved[1]);
    Weights weights;
    for (size_t i = 4; i < saved.size(); ++i) weights.push_back(leaf(saved[i]));

    // The second part first: its activations are gone before those of the first part are made.
    torch::autograd::variable_list wanted{x, out};
    wanted.insert(wanted.end(), weights.begin(), weights.end());
    auto gradients = torch::autograd::grad({call.block.after(x, rows_of(out), weights)}, wanted, {grads[0]},
                                           /*retain_graph=*/false, /*create_graph=*/false, /*allow_unused=*/true);
    const at::Tensor dout = gradients[1];
    gradients.erase(gradients.begin() + 1);
    wanted.erase(wanted.begin() + 1);

    const auto [q, k, v] = call.block.before(x, weights);
    const auto dqkv =
        attention_backward(dout, attention_restore(q, k, v, saved_out, lse, sequence.attention, sequence.group),
                           sequence.attention, sequence.group);
    const auto more = torch::autograd::grad({q, k, v}, wanted, {dqkv[0], dqkv[1], dqkv[2]}, /*retain_graph=*/false,
                                            /*create_graph=*/false, /*allow_unused=*/true);
    for (size_t i = 0; i < gradients.size(); ++i) {
      if (!gradients[i].defined())
        gradients[i] = more[i];
      else if (more[i].defined())
        gradients[i] = gradients[i] + more[i];
    }
    gradients.emplace_back();  // of `call`
    return gradients;
  }
};

}  // namespace

at::Tensor heads_of(const at::Tensor& x, int64_t dim) { return x.view({x.size(0), x.size(1) / dim, dim}); }
at::Tensor as_batch(const at::Tensor& x) { return x.transpose(0, 1).unsqueeze(0); }

at::Tensor run_block(const BlockParts& block, const at::Tensor& x, const Weights& weights, const Sequence& shared,
                     int64_t layer) {
  Sequence sequence = shared;
  sequence.attention.layer = static_cast<int>(layer);
  if (sequence.recompute && at::GradMode::is_enabled())
    return Checkpointed::apply(x, at::TensorList(weights), c10::make_intrusive<Call>(block, sequence));
  const auto [q, k, v] = block.before(x, weights);
  return block.after(x, rows_of(attention(q, k, v, sequence.attention, sequence.group)), weights);
}

}  // namespace startrail

#include "startrail/train/model/ops.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

namespace startrail {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::Function;
using torch::autograd::variable_list;

// Whether matrices of this type are multiplied in it, or in float32.
bool multiplies(const at::Tensor& x) {
  static const bool bfloat16 = __builtin_cpu_supports("avx512bf16");
  return x.scalar_type() != at::kBFloat16 || !x.is_cpu() || bfloat16;
}

// a * b, rounded once to the type of a.
at::Tensor product(const at::Tensor& a, const at::Tensor& b) {
  if (multiplies(a)) return at::mm(a, b);
  return at::mm(a.to(at::kFloat), b.to(at::kFloat)).to(a.scalar_type());
}

struct Linear : Function<Linear> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, const at::Tensor& weight,
                            const std::optional<at::Tensor>& bias) {
    context->save_for_backward({x, weight});
    context->saved_data["bias"] = bias.has_value();
    at::Tensor y = product(x, weight.t());
    return bias ? y.add_(*bias) : y;
  }
  static variable_list backward(AutogradContext* context, variable_list grads) {
    const auto saved = context->get_saved_variables();
    const at::Tensor dy = grads[0].contiguous();
    at::Tensor dx, dbias;
    if (context->needs_input_grad(0)) dx = product(dy, saved[1]);
    if (context->saved_data["bias"].toBool()) dbias = dy.sum(0, false, at::kFloat).to(dy.scalar_type());
    return {dx, product(dy.t(), saved[0]), dbias};
  }
};

struct Embed : Function<Embed> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& tokens, const at::Tensor& weight) {
    context->save_for_backward({tokens});
    context->saved_data["rows"] = weight.size(0);
    return weight.index_select(0, tokens);
  }
  static variable_list backward(AutogradContext* context, variable_list grads) {
    const at::Tensor tokens = context->get_saved_variables()[0];
    const at::Tensor sum =
        at::zeros({context->saved_data["rows"].toInt(), grads[0].size(1)}, grads[0].options().dtype(at::kFloat));
    sum.index_add_(0, tokens, grads[0].to(at::kFloat));
    return {at::Tensor(), sum.to(grads[0].scalar_type())};
  }
};

struct RmsNorm : Function<RmsNorm> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, const at::Tensor& weight, double eps) {
    const at::Tensor wide = x.to(at::kFloat);
    const at::Tensor inverse = at::rsqrt(wide.square().mean(-1, true) + eps);
    context->save_for_backward({x, weight, inverse});
    return (wide * inverse * weight.to(at::kFloat)).to(x.scalar_type());
  }
  static variable_list backward(AutogradContext* context, variable_list grads) {
    const auto saved = context->get_saved_variables();
    const at::Tensor &x = saved[0], &weight = saved[1], &inverse = saved[2];
    const at::Tensor unit = x.to(at::kFloat) * inverse, dy = grads[0].to(at::kFloat);
    const at::Tensor dweight = (dy * unit).sum(0);
    const at::Tensor dunit = dy * weight.to(at::kFloat);
    const at::Tensor dx = (dunit - unit * (dunit * unit).mean(-1, true)) * inverse;
    return {dx.to(x.scalar_type()), dweight.to(weight.scalar_type()), at::Tensor()};
  }
};

struct Swiglu : Function<Swiglu> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& gate, const at::Tensor& up) {
    context->save_for_backward({gate, up});
    return at::silu(gate).mul_(up);
  }
  static variable_list backward(AutogradContext* context, variable_list grads) {
    const auto saved = context->get_saved_variables();
    const at::Tensor &gate = saved[0], &up = saved[1];
    return {at::silu_backward(grads[0] * up, gate), at::silu(gate).mul_(grads[0])};
  }
};

at::Tensor rotated(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin) {
  const at::Tensor wide = x.to(at::kFloat), c = cos.unsqueeze(1), s = sin.unsqueeze(1);
  const auto halves = wide.chunk(2, -1);
  at::Tensor result = at::empty(x.sizes(), x.options());
  auto into = result.chunk(2, -1);
  into[0].copy_((halves[0] * c).sub_(halves[1] * s));
  into[1].copy_((halves[1] * c).add_(halves[0] * s));
  return result;
}

struct Rotate : Function<Rotate> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, const at::Tensor& cos,
                            const at::Tensor& sin) {
    context->save_for_backward({cos, sin});
    return rotated(x, cos, sin);
  }
  static variable_list backward(AutogradContext* context, variable_list grads) {
    const auto saved = context->get_saved_variables();
    return {rotated(grads[0], saved[0], -saved[1]), at::Tensor(), at::Tensor()};
  }
};

struct HeadLoss : Function<HeadLoss> {
  static variable_list forward(AutogradContext* context, const at::Tensor& x, const at::Tensor& weight,
                               const at::Tensor& targets, int64_t chunk, bool wanted) {
    const int64_t tokens = x.size(0);
    const auto wide = x.options().dtype(at::kFloat);
    at::Tensor each = at::zeros({tokens}, wide), dx, dweight;
    if (wanted) {
      dx = at::empty_like(x);
      dweight = at::zeros(weight.sizes(), wide);
    }
    const at::Tensor columns = multiplies(weight) ? weight : weight.to(at::kFloat);
    for (int64_t begin = 0; begin < tokens; begin += chunk) {
      const int64_t count = std::min(chunk, tokens - begin);
      const at::Tensor rows = x.narrow(0, begin, count).to(columns.scalar_type()),
                       aim = targets.narrow(0, begin, count);
      const at::Tensor valid = aim >= 0, index = aim.clamp_min(0).unsqueeze(1);
      const at::Tensor logits = at::mm(rows, columns.t()).to(at::kFloat);
      const at::Tensor log_sum = logits.logsumexp(1, true);
      each.narrow(0, begin, count).copy_((log_sum - logits.gather(1, index)).squeeze(1).mul_(valid));
      if (!wanted) continue;
      // The gradient of the logits, in their own memory: softmax - one at the target, zero without one.
      at::Tensor dlogits = logits.sub_(log_sum).exp_();
      dlogits.scatter_add_(1, index, at::full_like(log_sum, -1)).mul_(valid.unsqueeze(1));
      dlogits = dlogits.to(columns.scalar_type());
      dx.narrow(0, begin, count).copy_(at::mm(dlogits, columns));
      dweight.add_(at::mm(dlogits.t(), rows));
    }
    if (wanted) context->save_for_backward({dx, dweight.to(weight.scalar_type())});
    context->mark_non_differentiable({each});
    return {each.sum(at::kDouble), each};
  }
  static variable_list backward(AutogradContext* context, variable_list grads) {
    const auto saved = context->get_saved_variables();
    const double scale = grads[0].item<double>();
    return {saved[0] * scale, saved[1] * scale, at::Tensor(), at::Tensor(), at::Tensor()};
  }
};

}  // namespace

at::Tensor dense(const at::Tensor& x, const at::Tensor& weight, const std::optional<at::Tensor>& bias) {
  return Linear::apply(x, weight, bias);
}
at::Tensor embed(const at::Tensor& tokens, const at::Tensor& weight) { return Embed::apply(tokens, weight); }
at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps) {
  return RmsNorm::apply(x, weight, eps);
}
at::Tensor swiglu(const at::Tensor& gate, const at::Tensor& up) { return Swiglu::apply(gate, up); }
at::Tensor rotate(const at::Tensor& x, const Rotation& rotation) {
  return Rotate::apply(x, rotation.cos, rotation.sin);
}
TokenLoss head_loss(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& targets, int64_t chunk) {
  const bool wanted = at::GradMode::is_enabled() && (x.requires_grad() || weight.requires_grad());
  const variable_list results = HeadLoss::apply(x, weight, targets, chunk, wanted);
  return {results[0], results[1]};
}

}  // namespace startrail

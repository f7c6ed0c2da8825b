#include "startrail/train/model/ops.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <torch/csrc/autograd/custom_function.h>

#include "startrail/run/kernel/cpu/cpu.h"

namespace startrail {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::Function;
using torch::autograd::variable_list;

// Whether matrices of this type are multiplied in it, or in float32.
bool multiplies(const at::Tensor& x) {
  return x.scalar_type() != at::kBFloat16 || !x.is_cpu() || cpu::multiplies_bfloat16();
}

// a * b, rounded once to the type of b; a may be widened already.
at::Tensor product(const at::Tensor& a, const at::Tensor& b) {
  if (multiplies(b)) return at::mm(a, b);
  return at::mm(a.to(at::kFloat), b.to(at::kFloat)).to(b.scalar_type());
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
    const at::Tensor wide = multiplies(dy) ? dy : dy.to(at::kFloat);  // once for all of these
    at::Tensor dx, dbias;
    if (context->needs_input_grad(0)) dx = product(wide, saved[1]);
    if (context->saved_data["bias"].toBool()) dbias = wide.sum(0, false, at::kFloat).to(dy.scalar_type());
    return {dx, product(wide.t(), saved[0]), dbias};
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

// Whether the processor's vectors do it in one pass (cpu::row_work()). The rest of each function is for other types
// and devices.
bool in_one_pass(const at::Tensor& x) {
  return x.is_cpu() && (x.scalar_type() == at::kFloat || x.scalar_type() == at::kBFloat16);
}
bool narrow(const at::Tensor& x) { return x.scalar_type() == at::kBFloat16; }

// Rows of so many elements, among the caller's threads.
template <typename Work>
void share_rows(int64_t rows, int64_t elements, const Work& work) {
  at::parallel_for(0, rows, std::max<int64_t>(1, at::internal::GRAIN_SIZE / std::max<int64_t>(1, elements)), work);
}

struct RmsNorm : Function<RmsNorm> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, const at::Tensor& weight, double eps) {
    if (in_one_pass(x)) {
      const at::Tensor rows = x.contiguous(), gain = weight.contiguous();
      const at::Tensor inverse = at::empty({x.size(0), 1}, x.options().dtype(at::kFloat)), y = at::empty_like(rows);
      const cpu::NormRows work = norm_rows(rows, gain, inverse);
      share_rows(x.size(0), x.size(1), [&](int64_t begin, int64_t end) {
        cpu::row_work().rms_norm(work, static_cast<float>(eps), y.data_ptr(), begin, end);
      });
      context->save_for_backward({rows, gain, inverse});
      return y;
    }
    const at::Tensor wide = x.to(at::kFloat);
    const at::Tensor inverse = at::rsqrt(wide.square().mean(-1, true) + eps);
    context->save_for_backward({x, weight, inverse});
    return (wide * inverse * weight.to(at::kFloat)).to(x.scalar_type());
  }
  static variable_list backward(AutogradContext* context, variable_list grads) {
    const auto saved = context->get_saved_variables();
    const at::Tensor &x = saved[0], &weight = saved[1], &inverse = saved[2];
    if (in_one_pass(x)) {
      const at::Tensor dy = grads[0].contiguous(), dx = at::empty_like(x);
      // Sums of blocks that do not depend on the number of threads, and so neither does dweight.
      constexpr int64_t kBlocks = 64;
      const int64_t rows = x.size(0), block = (rows + kBlocks - 1) / kBlocks;
      const at::Tensor sums = at::zeros({kBlocks, x.size(1)}, inverse.options());
      const cpu::NormRows work = norm_rows(x, weight, inverse);
      share_rows(kBlocks, block * x.size(1), [&](int64_t first, int64_t last) {
        for (int64_t i = first; i < last; ++i)
          cpu::row_work().rms_norm_backward(work, dy.const_data_ptr(), dx.data_ptr(),
                                            sums.data_ptr<float>() + i * x.size(1), std::min(rows, i * block),
                                            std::min(rows, (i + 1) * block));
      });
      return {dx, sums.sum(0).to(weight.scalar_type()), at::Tensor()};
    }
    const at::Tensor unit = x.to(at::kFloat) * inverse, dy = grads[0].to(at::kFloat);
    const at::Tensor dweight = (dy * unit).sum(0);
    const at::Tensor dunit = dy * weight.to(at::kFloat);
    const at::Tensor dx = (dunit - unit * (dunit * unit).mean(-1, true)) * inverse;
    return {dx.to(x.scalar_type()), dweight.to(weight.scalar_type()), at::Tensor()};
  }
  static cpu::NormRows norm_rows(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& inverse) {
    return {narrow(x), x.size(1), x.const_data_ptr(), weight.const_data_ptr(), inverse.data_ptr<float>()};
  }
};

struct Swiglu : Function<Swiglu> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& gate, const at::Tensor& up) {
    if (!in_one_pass(gate)) {
      context->save_for_backward({gate, up});
      return at::silu(gate).mul_(up);
    }
    const at::Tensor gates = gate.contiguous(), ups = up.contiguous(), y = at::empty_like(gates);
    const cpu::GatedRow work{narrow(gates), gates.const_data_ptr(), ups.const_data_ptr()};
    share_rows(gates.numel(), 1,
               [&](int64_t begin, int64_t end) { cpu::row_work().swiglu(work, y.data_ptr(), begin, end); });
    context->save_for_backward({gates, ups});
    return y;
  }
  static variable_list backward(AutogradContext* context, variable_list grads) {
    const auto saved = context->get_saved_variables();
    const at::Tensor &gate = saved[0], &up = saved[1];
    if (!in_one_pass(gate)) return {at::silu_backward(grads[0] * up, gate), at::silu(gate).mul_(grads[0])};
    const at::Tensor dy = grads[0].contiguous(), dgate = at::empty_like(gate), dup = at::empty_like(up);
    const cpu::GatedRow work{narrow(gate), gate.const_data_ptr(), up.const_data_ptr()};
    share_rows(gate.numel(), 1, [&](int64_t begin, int64_t end) {
      cpu::row_work().swiglu_backward(work, dy.const_data_ptr(), dgate.data_ptr(), dup.data_ptr(), begin, end);
    });
    return {dgate, dup};
  }
};

// By the angles, or with sign -1 against them.
at::Tensor rotated(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin, float sign) {
  at::Tensor result = at::empty(x.sizes(), x.options());
  if (in_one_pass(x)) {
    const at::Tensor rows = x.stride(2) == 1 ? x : x.contiguous(), c = cos.contiguous(), s = sin.contiguous();
    const cpu::RotateRows work{narrow(x),
                               x.size(1),
                               x.size(2),
                               rows.const_data_ptr(),
                               rows.stride(0),
                               rows.stride(1),
                               c.const_data_ptr<float>(),
                               s.const_data_ptr<float>(),
                               sign};
    share_rows(x.size(0), x.size(1) * x.size(2),
               [&](int64_t begin, int64_t end) { cpu::row_work().rotate(work, result.data_ptr(), begin, end); });
    return result;
  }
  const at::Tensor wide = x.to(at::kFloat), c = cos.unsqueeze(1), s = sin.unsqueeze(1) * sign;
  const auto halves = wide.chunk(2, -1);
  auto into = result.chunk(2, -1);
  into[0].copy_((halves[0] * c).sub_(halves[1] * s));
  into[1].copy_((halves[1] * c).add_(halves[0] * s));
  return result;
}

struct Rotate : Function<Rotate> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, const at::Tensor& cos,
                            const at::Tensor& sin) {
    context->save_for_backward({cos, sin});
    return rotated(x, cos, sin, 1);
  }
  static variable_list backward(AutogradContext* context, variable_list grads) {
    const auto saved = context->get_saved_variables();
    return {rotated(grads[0], saved[0], saved[1], -1), at::Tensor(), at::Tensor()};
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

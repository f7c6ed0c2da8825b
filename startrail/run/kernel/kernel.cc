#include "startrail/run/kernel/kernel.h"

#include <ATen/ATen.h>
#include <limits>

#include "startrail/base/error.h"
#include "startrail/run/kernel/cpu/cpu.h"

namespace startrail {

const Kernel& choose_kernel(std::string_view name, at::ScalarType type, at::Device device, int64_t dim) {
  std::vector<const Kernel*> all = cpu::kernels();
  all.push_back(&reference_kernel());
  for (const Kernel* kernel : all) {
    if (name != "auto" && name != kernel->name()) continue;
    if (kernel->fits(type, device, dim)) return *kernel;
    if (name != "auto")
      throw UserError(cat("kernel ", name, " does not compute ", type, " with dim ", dim, " on ", device.str(),
                          "; use kernel auto"));
  }
  throw UserError(cat("kernel '", name, "' is not known; valid kernels: auto, flash, aten, reference"));
}

void merge_partial(Running& running, const at::Tensor& out, const at::Tensor& lse) {
  // Weights relative to the larger lse never overflow; where both are -inf the shift is 0 and both weights are 0.
  const at::Tensor top = at::maximum(running.lse, lse);
  const at::Tensor shift = top.masked_fill(top == -std::numeric_limits<double>::infinity(), 0);
  const at::Tensor mine = (running.lse - shift).exp_(), theirs = (lse - shift).exp_();
  const at::Tensor sum = mine + theirs;
  const at::Tensor share = sum.clamp_min(std::numeric_limits<float>::min()).reciprocal_();
  running.out.mul_((mine * share).unsqueeze(-1)).addcmul_(out, (theirs * share).unsqueeze(-1));
  running.lse.copy_(shift + sum.log());
}

}  // namespace startrail

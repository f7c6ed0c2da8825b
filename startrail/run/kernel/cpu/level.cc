// Which levels this build and this processor have, and which one is in use.
#include "startrail/run/kernel/cpu/level.h"

#include <cstdlib>
#include <utility>

#include "startrail/base/error.h"
#include "startrail/run/kernel/cpu/cpu.h"

namespace startrail::cpu {
namespace {

struct Processor {
  bool avx2 = false, avx512 = false, bfloat16 = false;
};

Processor processor() {
  Processor has;
#if defined(__x86_64__)
  has.avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  has.avx512 = has.avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
               __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
  has.bfloat16 = has.avx512 && __builtin_cpu_supports("avx512bf16");
#endif
  return has;
}

// Fastest first.
std::vector<const Level*> levels() {
  const Processor has = processor();
  std::vector<const Level*> all{has.bfloat16 ? avx512_bf16_level() : nullptr, has.avx512 ? avx512_level() : nullptr,
                                has.avx2 ? avx2_level() : nullptr, portable_level()};
  std::erase(all, nullptr);
  return all;
}

}  // namespace

std::vector<std::string> level_names() {
  std::vector<std::string> names;
  for (const Level* each : levels()) names.push_back(each->name);
  return names;
}

const Level& level(std::string_view name) {
  for (const Level* each : levels())
    if (name.empty() || name == each->name) return *each;
  throw UserError(
      cat("STARTRAIL_ISA=", name, " is not a level of this processor; valid levels: ", join(level_names())));
}

const Level& level() {
  static const Level& chosen = []() -> const Level& {
    const char* name = std::getenv("STARTRAIL_ISA");
    return level(name ? name : "");
  }();
  return chosen;
}

const RowWork& row_work() { return level().rows; }

bool multiplies_bfloat16() {
  static const bool does = processor().bfloat16;
  return does;
}

std::vector<const Kernel*> kernels() {
  std::vector<const Kernel*> all{&flash_kernel(), &aten_kernel()};
  // Without wide vectors ATen's, whose products are a vendor's, is faster than ours.
  if (levels().size() == 1) std::swap(all[0], all[1]);
  return all;
}

}  // namespace startrail::cpu

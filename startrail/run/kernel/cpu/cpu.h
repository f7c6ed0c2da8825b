// What a CPU brings: its kernels, and the processor's levels that the kernels and a model's rows run on. Used by
// kernel.cc, by train/model/ops.cc for its rows, and by benchmarks and tests; others take kernels from choose_kernel.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "startrail/run/kernel/cpu/level.h"
#include "startrail/run/kernel/kernel.h"

namespace startrail::cpu {

// All of them, fastest first.
std::vector<const Kernel*> kernels();
// Our own on the processor's vectors: float32, and bfloat16 (multiplied as such where the processor can, otherwise
// widened).
const Kernel& flash_kernel();
std::unique_ptr<Kernel> make_flash_kernel(const Level& level);
// ATen's flash attention per tile, computing in float32.
const Kernel& aten_kernel();

std::vector<std::string> level_names();  // of this processor, fastest first
// The level in use: the one that the environment's STARTRAIL_ISA names, else the first. UserError when it is not there.
const Level& level();
const Level& level(std::string_view name);  // "": the first
// Norms, rotary positions and SwiGLU on the level in use.
const RowWork& row_work();
// Whether the processor multiplies bfloat16 as such, whatever level is in use.
bool multiplies_bfloat16();

}  // namespace startrail::cpu

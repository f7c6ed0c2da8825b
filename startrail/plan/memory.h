// What a rank holds while it carries out a plan: its steps played with sizes instead of tensors, by the executor's
// lifetimes. `startrail plan` shows it; a run measures it. Not a plan's matter: what a kernel makes for itself inside
// an attend (run/kernel says how much), and copies that the caller has in a layout of its own.
#pragma once

#include <cstdint>
#include <functional>

#include "startrail/plan/volume.h"

namespace startrail {

// Bytes that a kernel makes for itself while it does an attend step.
using Scratch = std::function<int64_t(const Step& attend)>;

// The most bytes of blocks that `rank` holds at once, its own inputs included; with `scratch` the kernel's own bytes
// too, where they fall. A block is made when it is first written, or when its receive is posted. It is freed after its
// last step, a partial one when it is sent or merged; what the forward saves for the backward (q, k, v, out, lse) is
// kept by the forward and, since autograd holds it, by the whole backward. A sent block is on its way until a later
// step that waits or attends is done: a receiver that lags further behind makes its sender hold more.
int64_t peak_bytes(const Plan& plan, int rank, const Problem& problem, const Scratch& scratch = {});

// The same for the rank of a grid that holds most, with every chunk as long as the longest: exact for equal chunks, and
// from one rank's steps, because the ranks of a grid then differ in names only.
int64_t peak_bytes(const Grid& grid, Pass pass, const Problem& problem);

}  // namespace startrail

// What a rank holds while it carries out a plan: its steps followed with sizes instead of tensors. `startrail plan`
// shows it; a run measures at most that, whatever the timing of the ranks. Not a plan's matter: what a kernel makes for
// itself inside an attend (run/kernel says how much), and copies that the caller has in a layout of its own.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "startrail/plan/volume.h"

namespace startrail {

// Bytes that a kernel makes for itself while it does an attend step.
using Scratch = std::function<int64_t(int64_t queries, int64_t keys)>;

// The most bytes of blocks that `rank` holds at once, its own inputs included; with `scratch` the kernel's own bytes
// too, where they fall. Play (play.h) says when a buffer is made and freed and when a send is over. A sent block is
// held until then, as if its receiver were as late as can be; a message that differs from what is held (a narrower
// type, some of the heads) is a copy.
int64_t peak_bytes(const Plan& plan, int rank, const Problem& problem, const Scratch& scratch = {});

// The most held at any moment of each step, and of the end, when what is still on its way is waited for.
std::vector<int64_t> held_bytes(const Plan& plan, int rank, const Problem& problem, const Scratch& scratch = {});

// peak_bytes for the rank of a grid that holds most, with every chunk as long as the longest: exact for equal chunks,
// and from one rank's steps, because the ranks of a grid then differ in names only.
int64_t peak_bytes(const Grid& grid, Pass pass, const Problem& problem);

}  // namespace startrail

// Proves a plan without running it, by playing it with sets instead of tensors.
#pragma once

#include "startrail/plan/volume.h"

namespace startrail {

// Throws UserError naming rank and step unless, whatever the timing of the ranks:
//   coverage   every query chunk meets every key chunk exactly once in each slice of the heads, and every rank ends
//              with its own chunk's result holding all of them;
//   matching   every receive gets what the matching send sends, and nothing sent is left over;
//   readiness  every block is there before it is read, and nothing is read after it was given away;
//   progress   no rank waits for ever.
void check_plan(const Plan& plan);

// Throws UserError naming the rank and kind unless the bytes the plan sends equal the closed formulas.
void check_volume(const Plan& plan, const Grid& grid, const Problem& problem);

}  // namespace startrail

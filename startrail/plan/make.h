// The one maker: steps for any grid, forward and both backwards. Ring, StarTrail, Ulysses, USP, all-gather and 2-D
// tiles come out of it as they are in the grid; there is no code for any of them.
#pragma once

#include "startrail/plan/plan.h"

namespace startrail {

// The steps of one rank; cheap enough to make at every call.
Steps make_steps(const Grid& grid, Pass pass, int rank);

PlanHead plan_head(const Grid& grid, Pass pass);
Plan make_plan(const Grid& grid, Pass pass);

}  // namespace startrail

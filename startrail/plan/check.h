// Proves a plan without running it, by following its steps with sets instead of tensors.
#pragma once

#include "startrail/plan/volume.h"

namespace startrail {

// Throws UserError naming rank and step unless, whatever the timing of the ranks:
//   readiness  every block is there before it is read, and nothing is read after it was given away;
//   matching   every receive gets what the matching send sends, and nothing sent is left over;
//   coverage   every query chunk meets every key chunk exactly once in each slice of the heads, and every rank ends
//              with its own chunks' results holding all of them;
//   progress   no rank waits for ever, also where messages have no tags (check_order).
void check_plan(const Plan& plan);

enum class Posting {
  together,  // a step's messages are one group, as the executor posts them
  singly,    // every message is a group of its own
};

// The last two of these on a transport like NCCL's, which knows no tags: messages between two ranks are matched in the
// order in which they are posted, and each rank has one queue of groups. A group is done when each of its messages has
// met its partner, and the next begins then. A rank waits for nothing but groups of its own that it posted before
// (what it reads, and sends beyond kOpenSends of a channel), so no plan that passes can stop on any transport.
void check_order(const Plan& plan, Posting posting = Posting::together);

// Throws UserError naming the rank and kind unless the bytes the plan sends equal the closed formulas, for each
// problem.
void check_volume(const Plan& plan, const Grid& grid, const std::vector<Problem>& problems);

}  // namespace startrail

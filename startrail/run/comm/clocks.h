// How the clocks of hosts differ, so that what their ranks wrote down can be laid side by side.
#pragma once

#include <string>
#include <vector>

#include "startrail/run/comm/group.h"

namespace startrail {

// What to add to each rank's RankTrace::now_us() to have the first rank's, by rank: on the first rank, and nothing
// elsewhere. All ranks call it. Those of one kernel share a clock, whatever node they count for. Of many round trips
// the quickest counts, which under load is some ten microseconds off.
std::vector<double> clock_shifts_us(Group& group);

// What all ranks wrote down, as write_traces takes it: on the first rank, and nothing elsewhere. All ranks call it; one
// that recorded nothing gives null.
struct CollectedTraces {
  std::vector<std::string> texts;
  std::vector<double> shift_us;
};
CollectedTraces collect_traces(Group& group, const RankTrace* mine);

}  // namespace startrail

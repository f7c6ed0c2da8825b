// What a plan sends, to the byte: counted message by message from its steps, and by the closed formulas of
// docs/algorithm.md, which know only the grid. check.cc demands that the two agree.
#pragma once

#include <cstdint>
#include <functional>

#include "startrail/cluster/cluster.h"
#include "startrail/plan/problem.h"

namespace startrail {

// Bytes sent by one rank, by kind.
struct Volume {
  int64_t bytes[4] = {0, 0, 0, 0};

  int64_t& operator[](Traffic kind) { return bytes[static_cast<int>(kind)]; }
  int64_t operator[](Traffic kind) const { return bytes[static_cast<int>(kind)]; }
  int64_t total() const { return bytes[0] + bytes[1] + bytes[2] + bytes[3]; }
  bool operator==(const Volume&) const = default;
};

// Calls `visit` for everything `rank` sends, with the index of its step and its bytes on the wire. Empty messages are
// not sent and not visited.
void each_message(const Plan& plan, int rank, const Problem& problem,
                  const std::function<void(size_t step, const Message&, int64_t bytes)>& visit);

Volume count_volume(const Plan& plan, int rank, const Problem& problem);
Volume count_volume(const PlanHead& head, const Play& play, const Problem& problem);

// Bytes that leave the sender's node.
int64_t count_crossing(const Plan& plan, int rank, const Problem& problem, const Cluster& cluster);

// The same from the closed formulas, summed over real chunk lengths where these differ.
Volume formula_volume(const Grid& grid, Pass pass, int rank, const Problem& problem);

// The backward direction that sends fewer bytes in all (keys when equal).
Pass cheaper_backward(const Grid& grid, const Problem& problem);

}  // namespace startrail

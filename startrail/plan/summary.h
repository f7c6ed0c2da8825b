// What one attention on a grid does and costs, beside Ring Attention on as many ranks: for people who choose.
// `startrail plan` and the Python package show it.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "startrail/cluster/cluster.h"
#include "startrail/plan/volume.h"

namespace startrail {

// The most that any rank sends, of each kind and in all (with unequal chunks these may be different ranks), and holds.
struct PassCost {
  Pass pass = Pass::forward;
  Volume kinds;
  int64_t total = 0;
  int64_t peak_bytes = 0;
};
PassCost pass_cost(const Grid& grid, Pass pass, const Problem& problem);
// Ring Attention's in the same pass, or in the backward that is cheaper for it.
PassCost ring_cost(int ranks, Pass pass, const Problem& problem);

// The distinct lines of the grid along one axis: its rings, teams, stripes or head groups.
std::vector<std::vector<int>> lines_along(const Grid& grid, Axis axis);
// What the grid is called, and all of its lines.
std::string lines_text(const Grid& grid);
// The steps of one rank, forward and in the cheaper backward.
std::string steps_text(const Grid& grid, const Problem& problem, int rank);
// Bytes sent and held in each pass; with a cluster also those that leave a node.
std::string costs_text(const Grid& grid, const Problem& problem, const std::optional<Cluster>& cluster = {});

// {"pass", "volume": {...}, "ring_volume": {...}, "peak_bytes", "ring_peak_bytes"}
nlohmann::json cost_json(const Grid& grid, Pass pass, const Problem& problem);

}  // namespace startrail

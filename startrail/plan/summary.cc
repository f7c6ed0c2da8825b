#include "startrail/plan/summary.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "startrail/base/text.h"
#include "startrail/plan/make.h"
#include "startrail/plan/memory.h"
#include "startrail/plan/text.h"

namespace startrail {
namespace {

std::string ratio(int64_t bytes, int64_t ring_bytes) {
  return ring_bytes > 0 ? fixed(static_cast<double>(bytes) / static_cast<double>(ring_bytes), 3) : "-";
}
std::string bytes_text(int64_t bytes) { return human_bytes(static_cast<double>(bytes)); }

nlohmann::json volume_json(const PassCost& cost) {
  nlohmann::json json = {{"total", cost.total}};
  for (Traffic kind : kTraffic) json[to_text(kind)] = cost.kinds[kind];
  return json;
}

}  // namespace

PassCost pass_cost(const Grid& grid, Pass pass, const Problem& problem) {
  PassCost most{pass, {}, 0, peak_bytes(grid, pass, problem)};
  for (int rank = 0; rank < grid.ranks(); ++rank) {
    const Volume volume = formula_volume(grid, pass, rank, problem);
    for (Traffic kind : kTraffic) most.kinds[kind] = std::max(most.kinds[kind], volume[kind]);
    most.total = std::max(most.total, volume.total());
  }
  return most;
}

PassCost ring_cost(int ranks, Pass pass, const Problem& problem) {
  const Grid ring{.ring = ranks};
  return pass_cost(ring, pass == Pass::forward ? pass : cheaper_backward(ring, problem), problem);
}

std::vector<std::vector<int>> lines_along(const Grid& grid, Axis axis) {
  std::vector<std::vector<int>> lines;
  for (int rank = 0; rank < grid.ranks(); ++rank)
    if (place_of(grid, rank)[static_cast<int>(axis)] == 0) lines.push_back(line_through(grid, rank, axis));
  return lines;
}

std::string lines_text(const Grid& grid) {
  const std::string scheme = scheme_of(grid);
  std::string text = cat(scheme.empty() ? "" : scheme + " = ", to_text(grid), " on ", grid.ranks(), " ranks\n\n");
  const auto rings = lines_along(grid, Axis::ring);
  if (grid.ring > 1) {
    text += cat(rings.size(), rings.size() == 1 ? " ring" : " concentric rings", " of ", grid.ring,
                " pass keys and values:\n");
    for (const auto& ring : rings) text += cat("  ", join(ring, " -> "), " -> ", ring[0], "\n");
  } else {
    text += "no ring: keys and values are gathered once\n";
  }
  const auto groups = [&](Axis axis, const std::string& what) {
    if (grid.size(axis) == 1) return;
    std::vector<std::string> texts;
    for (const auto& line : lines_along(grid, axis)) texts.push_back(cat("(", join(line, " "), ")"));
    text += cat(texts.size(), " ", what, ":\n  ", join(texts, " "), "\n");
  };
  groups(Axis::team, "teams share their queries and merge their outputs");
  groups(Axis::stripe, "stripes share their keys and values");
  groups(Axis::heads, "groups trade tokens for heads");
  return text;
}

std::string steps_text(const Grid& grid, const Problem& problem, int rank) {
  std::string text;
  for (Pass pass : {Pass::forward, cheaper_backward(grid, problem)}) {
    text += cat("\n", to_text(pass), ", steps of rank ", rank, ":\n");
    for (const Step& step : make_steps(grid, pass, rank)) text += cat("  ", to_text(step), "\n");
  }
  return text;
}

std::string costs_text(const Grid& grid, const Problem& problem, const std::optional<Cluster>& cluster) {
  std::vector<std::vector<std::string>> sent{
      {"sent by a rank", "p2p", "gather", "merge", "all_to_all", "total", "ring", "of ring's"}};
  std::vector<std::vector<std::string>> held{{"held by a rank", "peak", "ring", "of ring's"}};
  if (cluster) sent[0].push_back("leaves its node");
  for (Pass pass : kPasses) {
    const PassCost most = pass_cost(grid, pass, problem), ring = ring_cost(grid.ranks(), pass, problem);
    std::vector<std::string> cells{to_text(pass)};
    for (Traffic kind : kTraffic) cells.push_back(bytes_text(most.kinds[kind]));
    for (const std::string& cell : {bytes_text(most.total), bytes_text(ring.total), ratio(most.total, ring.total)})
      cells.push_back(cell);
    if (cluster) {
      const Plan plan = make_plan(grid, pass);
      int64_t crossing = 0;
      for (int rank = 0; rank < grid.ranks(); ++rank)
        crossing = std::max(crossing, count_crossing(plan, rank, problem, *cluster));
      cells.push_back(bytes_text(crossing));
    }
    sent.push_back(cells);
    held.push_back({to_text(pass), bytes_text(most.peak_bytes), bytes_text(ring.peak_bytes),
                    ratio(most.peak_bytes, ring.peak_bytes)});
  }
  return cat(table(sent), "  backward auto takes ", to_text(cheaper_backward(grid, problem)), "\n\n", table(held),
             "  blocks only: what the kernel makes for itself comes on top\n");
}

nlohmann::json cost_json(const Grid& grid, Pass pass, const Problem& problem) {
  const PassCost most = pass_cost(grid, pass, problem), ring = ring_cost(grid.ranks(), pass, problem);
  return {{"pass", to_text(pass)},
          {"volume", volume_json(most)},
          {"ring_volume", volume_json(ring)},
          {"peak_bytes", most.peak_bytes},
          {"ring_peak_bytes", ring.peak_bytes}};
}

}  // namespace startrail

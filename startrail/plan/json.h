// Plans as JSON, for programs and for the page that `startrail show` draws: the attention they are for, the grid's
// lines, every step and message, and what they cost. Compact, since plans of many ranks are long: blocks are listed
// once and named by their place, and a step is an array
//   ["gather", in, out, [[rank, [chunks]], ...]]     also merge and all_to_all
//   ["delta", in, with, out]
//   ["exchange", send, receive, to, from]            -1 where there is none
//   ["attend", queries, keys]
#pragma once

#include <optional>
#include <string>

#include <nlohmann/json_fwd.hpp>

#include "startrail/cluster/cluster.h"
#include "startrail/plan/volume.h"

namespace startrail {

constexpr int kPlanFormat = 1;

// {"pass", "slices", "owners", "blocks": [[data, [chunks], slice], ...], "ranks": [[step, ...], ...]}
nlohmann::json to_json(const Plan& plan);

// What to_json wrote, read back: UserError for what it would not write. Whether the plan is right is for check_plan.
Plan plan_from_json(const nlohmann::json& json);

// What an attention is called, besides the numbers of its problem.
struct PlanSubject {
  std::string type = {}, partial = {}, layout = {};  // as their flags have them
  Mask mask = {};
  std::optional<Cluster> cluster = {};  // counts what leaves a node
  std::optional<int> rank = {};         // only this rank's steps, messages and memory
  std::optional<Pass> backward = {};    // the one that is taken; none: the cheaper
  bool checked = false;                 // whether the plans were proved
};

// All three passes of a grid. docs/pages.md lists the keys.
nlohmann::json plan_json(const Grid& grid, const Problem& problem, const PlanSubject& subject);

}  // namespace startrail

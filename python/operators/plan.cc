#include "python/operators/plan.h"

#include <nlohmann/json.hpp>

#include "startrail/base/text.h"
#include "startrail/plan/summary.h"
#include "startrail/plan/text.h"

namespace startrail {

std::string plan_json(const AttentionOptions& options, const AttentionShape& shape) {
  const PreparedAttention checked(options, shape, 0, options.grid.ranks());
  const Problem& problem = checked.how(PreparedAttention::Use::forward).problem;
  const Grid& grid = options.grid;
  nlohmann::json json = {
      {"grid", to_text(grid)},
      {"scheme", scheme_of(grid)},
      {"ranks", grid.ranks()},
      {"backward", to_text(backward_pass(options, problem))},
      {"text", cat(lines_text(grid), steps_text(grid, problem, 0), "\n", costs_text(grid, problem))}};
  for (Pass pass : kPasses) json["passes"].push_back(cost_json(grid, pass, problem));
  return json.dump();
}

}  // namespace startrail

#include "startrail/plan/choose.h"

#include <algorithm>
#include <limits>

#include "startrail/plan/memory.h"

namespace startrail {
namespace {

Pass direction_of(const Grid& grid, const Problem& problem, const Exchange& exchange) {
  return exchange.direction.value_or(cheaper_backward(grid, problem));
}

int64_t held_bytes(const Grid& grid, const Problem& problem, const Exchange& exchange) {
  const int64_t forward = peak_bytes(grid, Pass::forward, problem);
  if (!exchange.backward) return forward;
  return std::max(forward, peak_bytes(grid, direction_of(grid, problem, exchange), problem));
}

}  // namespace

int64_t exchange_bytes(const Grid& grid, int rank, const Problem& problem, const Exchange& exchange) {
  int64_t bytes = formula_volume(grid, Pass::forward, rank, problem).total();
  if (!exchange.backward) return bytes;
  bytes += formula_volume(grid, direction_of(grid, problem, exchange), rank, problem).total();
  // The forward's all-to-all without its output.
  if (exchange.restores && grid.heads > 1)
    bytes += problem.queries.tokens(rank) * problem.batch * problem.dim * problem.element_bytes * (grid.heads - 1) *
             (problem.heads / grid.heads + 2 * key_heads_of_slice(problem.key_heads, grid.heads));
  return bytes;
}

GridChoice choose_grid(const Problem& problem, const Exchange& exchange) {
  Problem even = problem;  // then all ranks send the same, and grids that differ by a rounding are equal
  even.queries = evened(problem.queries);
  even.keys = evened(problem.keys);
  GridChoice choice;
  std::vector<Grid> best;
  int64_t fewest = std::numeric_limits<int64_t>::max();
  for (const Grid& grid : every_grid(problem.queries.count())) {
    if (!heads_fit(grid.heads, problem.heads, problem.key_heads)) continue;
    ++choice.fitting;
    const int64_t bytes = exchange_bytes(grid, 0, even, exchange);
    if (bytes < fewest) best.clear();
    fewest = std::min(fewest, bytes);
    if (bytes == fewest) best.push_back(grid);
  }
  choice.equal = static_cast<int>(best.size());
  std::vector<int64_t> held;
  for (const Grid& grid : best) held.push_back(best.size() > 1 ? held_bytes(grid, even, exchange) : 0);
  choice.grid = best[static_cast<size_t>(std::min_element(held.begin(), held.end()) - held.begin())];
  return choice;
}

}  // namespace startrail

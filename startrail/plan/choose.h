// Which grid the ranks of a sequence form when nobody says: the one that sends the fewest bytes. By the closed formulas
// alone; what links and kernels make of the bytes is not known here.
#pragma once

#include <optional>

#include "startrail/plan/volume.h"

namespace startrail {

// What is done with one attention.
struct Exchange {
  bool backward = true;                // besides the forward pass
  std::optional<Pass> direction = {};  // of the backward pass; nothing: the cheaper
  bool restores = false;               // q, k and v are made anew for it, and traded once more where heads are split
};

// Bytes that `rank` sends for it.
int64_t exchange_bytes(const Grid& grid, int rank, const Problem& problem, const Exchange& exchange);

struct GridChoice {
  Grid grid;
  int fitting = 0;  // grids of so many ranks whose heads axis fits the problem
  int equal = 0;    // of them, those that send as few bytes as this one
};

// Of all grids that fit the problem's chunks and heads the one whose ranks send the fewest bytes, with every chunk as
// long as the longest; of equal ones that whose ranks hold the least; of those the first of every_grid.
GridChoice choose_grid(const Problem& problem, const Exchange& exchange);

}  // namespace startrail

// The grid: P ranks arranged as heads x team x ring x stripe. One family that holds Ring Attention, StarTrail, Ulysses,
// USP, all-gather and 2-D tiles as special cases. plan/ turns a grid into steps; nothing else knows the schemes.
#pragma once

#include <array>
#include <string>
#include <string_view>
#include <vector>

namespace startrail {

enum class Axis { heads, team, ring, stripe };
inline constexpr std::array<Axis, 4> kAxes = {Axis::heads, Axis::team, Axis::ring, Axis::stripe};

struct Grid {
  int heads = 1;   // ranks that split the attention heads (all-to-all before and after)
  int team = 1;    // ranks that share their queries and merge their outputs
  int ring = 1;    // ranks that pass keys and values around
  int stripe = 1;  // ranks that share their keys and values
  // From the axis that runs over neighbouring ranks (and so stays inside a node) to the outermost.
  std::array<Axis, 4> order = kAxes;

  int size(Axis axis) const;
  int ranks() const { return heads * team * ring * stripe; }
  bool operator==(const Grid&) const = default;
};

// A rank's place on each axis, indexed by Axis.
using Place = std::array<int, 4>;
Place place_of(const Grid& grid, int rank);
int rank_at(const Grid& grid, const Place& place);

// The ranks that differ from `rank` only on `axis`, in order of their place on it.
std::vector<int> line_through(const Grid& grid, int rank, Axis axis);

// Reads a name (ring, startrail:C, ulysses, usp:U, allgather, mesh:A) or the full form
// "heads=1,team=2,ring=4,stripe=2,order=heads-team-ring-stripe" (axes left out are 1, a ring left out is what remains).
// UserError with the valid choices when it does not fit `ranks`.
Grid parse_grid(std::string_view text, int ranks);

// The full form; the order only when it is not the usual one.
std::string to_text(const Grid& grid);
std::string to_text(Axis axis);

// The name of the known scheme a grid is, or "" for one without a name.
std::string scheme_of(const Grid& grid);
// What to call a grid: its scheme, or the full form where it has no name.
std::string name_of(const Grid& grid);

// Every factorisation of `ranks`, in the usual order of axes.
std::vector<Grid> every_grid(int ranks);

// The heads rule: `slices` divides the query heads, and divides the key/value heads or is divided by them.
bool heads_fit(int slices, int64_t query_heads, int64_t key_heads);

// UserError unless the heads rule holds for grid.heads and key/value heads divide query heads.
void check_heads(const Grid& grid, int query_heads, int key_heads);

}  // namespace startrail

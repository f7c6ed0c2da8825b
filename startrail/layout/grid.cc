#include "startrail/layout/grid.h"

#include <algorithm>
#include <optional>
#include <set>

#include "startrail/base/error.h"
#include "startrail/base/nearest.h"
#include "startrail/base/numbers.h"

namespace startrail {
namespace {

constexpr std::string_view kForms =
    "ring, startrail:C, ulysses, usp:U, allgather, mesh:A, or heads=...,team=...,ring=...,stripe=...[,order=...]";

// ", the nearest is ..." for a misspelt name, with the argument that was given.
std::string nearest_text(std::string_view text) {
  constexpr std::string_view kNames[] = {"ring", "startrail:C", "ulysses", "usp:U", "allgather", "mesh:A"};
  const std::string_view given = text.substr(0, text.find(':'));
  const auto distance = [&](std::string_view name) { return edit_distance(given, name.substr(0, name.find(':'))); };
  const std::string_view nearest = *std::min_element(std::begin(kNames), std::end(kNames),
                                                     [&](auto a, auto b) { return distance(a) < distance(b); });
  if (distance(nearest) > given.size() / 2) return "";  // another word altogether
  const size_t colon = nearest.find(':');
  if (colon == std::string_view::npos || given.size() == text.size()) return cat(", the nearest is ", nearest);
  return cat(", the nearest is ", nearest.substr(0, colon), text.substr(given.size()));
}

// The same for an axis of the full form.
std::string nearest_axis(std::string_view given) {
  std::vector<std::string> names{"order"};
  for (Axis axis : kAxes) names.push_back(to_text(axis));
  const auto nearest = std::min_element(names.begin(), names.end(), [&](const auto& a, const auto& b) {
    return edit_distance(given, a) < edit_distance(given, b);
  });
  return edit_distance(given, *nearest) > given.size() / 2 ? "" : cat(": for '", given, "' the nearest is ", *nearest);
}

std::vector<int> square_divisors(int ranks) {
  std::vector<int> all;
  for (int c = 1; c * c <= ranks; ++c)
    if (ranks % (c * c) == 0) all.push_back(c);
  return all;
}

int divisor_argument(std::string_view name, std::string_view argument, int ranks, const std::vector<int>& valid,
                     std::string_view rule) {
  const int64_t value = parse_int(argument, cat(name, ":"));
  if (std::find(valid.begin(), valid.end(), value) == valid.end())
    throw UserError(cat(name, ":", argument, " does not fit ", ranks, " ranks: ", rule, "; valid on ", ranks,
                        " ranks: ", name, ":", join(valid, cat(", ", name, ":"))));
  return static_cast<int>(value);
}

std::array<Axis, 4> parse_axis_order(std::string_view text) {
  const std::vector<std::string> names = split(text, '-');
  std::array<Axis, 4> order{};
  std::set<Axis> seen;
  for (size_t i = 0; i < names.size() && i < 4; ++i)
    for (Axis axis : kAxes)
      if (names[i] == to_text(axis)) {
        order[i] = axis;
        seen.insert(axis);
      }
  if (names.size() != 4 || seen.size() != 4)
    throw UserError(cat("order '", text, "' must name heads, team, ring and stripe once each, from the axis over ",
                        "neighbouring ranks to the outermost, such as order=heads-team-ring-stripe"));
  return order;
}

Grid parse_full_form(std::string_view text, int ranks) {
  Grid grid;
  std::set<std::string> given;
  for (const std::string& part : split(text, ',')) {
    const size_t equals = part.find('=');
    const std::string key = part.substr(0, equals);
    const std::string value = equals == std::string::npos ? "" : part.substr(equals + 1);
    if (!given.insert(key).second) throw UserError(cat("grid '", text, "' gives ", key, " twice: give it once"));
    int* size = key == "heads"    ? &grid.heads
                : key == "team"   ? &grid.team
                : key == "ring"   ? &grid.ring
                : key == "stripe" ? &grid.stripe
                                  : nullptr;
    if (size) {
      const int64_t number = parse_int(value, key);
      if (number < 1 || number > ranks)
        throw UserError(cat(key, " ", number, " does not fit ", ranks, " ranks: it must divide ", ranks,
                            "; valid: ", join(divisors(ranks))));
      *size = static_cast<int>(number);
    } else if (key == "order") {
      grid.order = parse_axis_order(value);
    } else {
      throw UserError(cat("grid '", text, "' is not known", nearest_axis(key), "; valid grids: ", kForms));
    }
  }
  const int64_t rest = int64_t{grid.heads} * grid.team * grid.stripe;
  if (!given.count("ring") && ranks % rest == 0) grid.ring = static_cast<int>(ranks / rest);
  if (rest * grid.ring != ranks) {
    std::string rings;
    if (ranks % rest == 0) rings = cat("; with these, ring must be ", ranks / rest);
    throw UserError(cat("heads ", grid.heads, " x team ", grid.team, " x ring ", grid.ring, " x stripe ", grid.stripe,
                        " is ", rest * grid.ring, ", but there are ", ranks,
                        " ranks: the product must be equal, so each axis is one of ", join(divisors(ranks)), rings));
  }
  return grid;
}

}  // namespace

int Grid::size(Axis axis) const {
  switch (axis) {
    case Axis::heads:
      return heads;
    case Axis::team:
      return team;
    case Axis::ring:
      return ring;
    case Axis::stripe:
      return stripe;
  }
  throw InternalError("unknown axis");
}

Place place_of(const Grid& grid, int rank) {
  Place place{};
  for (Axis axis : grid.order) {
    place[static_cast<int>(axis)] = rank % grid.size(axis);
    rank /= grid.size(axis);
  }
  return place;
}

int rank_at(const Grid& grid, const Place& place) {
  int rank = 0;
  for (size_t i = grid.order.size(); i-- > 0;)
    rank = rank * grid.size(grid.order[i]) + place[static_cast<int>(grid.order[i])];
  return rank;
}

std::vector<int> line_through(const Grid& grid, int rank, Axis axis) {
  int stride = 1;  // between neighbours on the axis
  for (size_t i = 0; grid.order[i] != axis; ++i) stride *= grid.size(grid.order[i]);
  const int size = grid.size(axis), first = rank - rank / stride % size * stride;
  std::vector<int> line;
  for (int i = 0; i < size; ++i) line.push_back(first + i * stride);
  return line;
}

Grid parse_grid(std::string_view text, int ranks) {
  if (ranks < 1) throw UserError(cat(ranks, " ranks cannot form a grid: give 1 or more"));
  const size_t colon = text.find(':');
  const std::string_view name = text.substr(0, colon);
  if (colon == std::string_view::npos) {
    if (text == "ring") return {.ring = ranks};
    if (text == "ulysses") return {.heads = ranks};
    if (text == "allgather") return {.stripe = ranks};
    if (text.find('=') != std::string_view::npos) return parse_full_form(text, ranks);
  } else {
    const std::string_view argument = text.substr(colon + 1);
    if (name == "startrail") {
      const int c = divisor_argument(name, argument, ranks, square_divisors(ranks), "C*C must divide the ranks");
      return {.team = c, .ring = ranks / (c * c), .stripe = c};
    }
    if (name == "usp") {
      const int u = divisor_argument(name, argument, ranks, divisors(ranks), "U must divide the ranks");
      return {.heads = u, .ring = ranks / u};
    }
    if (name == "mesh") {
      const int a = divisor_argument(name, argument, ranks, divisors(ranks), "A must divide the ranks");
      return {.team = a, .stripe = ranks / a};
    }
  }
  throw UserError(cat("grid '", text, "' is not known", nearest_text(text), "; valid grids: ", kForms));
}

std::string to_text(Axis axis) {
  switch (axis) {
    case Axis::heads:
      return "heads";
    case Axis::team:
      return "team";
    case Axis::ring:
      return "ring";
    case Axis::stripe:
      return "stripe";
  }
  throw InternalError("unknown axis");
}

std::string to_text(const Grid& grid) {
  std::vector<std::string> parts;
  for (Axis axis : kAxes) parts.push_back(cat(to_text(axis), "=", grid.size(axis)));
  if (grid.order != kAxes) {
    std::vector<std::string> names;
    for (Axis axis : grid.order) names.push_back(to_text(axis));
    parts.push_back("order=" + join(names, "-"));
  }
  return join(parts, ",");
}

std::string scheme_of(const Grid& grid) {
  const int ranks = grid.ranks();
  if (grid.heads == 1 && grid.team == 1 && grid.stripe == 1) return "ring";
  if (grid.heads == ranks) return "ulysses";
  if (grid.stripe == ranks) return "allgather";
  if (grid.team == 1 && grid.stripe == 1) return cat("usp:", grid.heads);
  if (grid.heads == 1 && grid.team == grid.stripe) return cat("startrail:", grid.team);
  if (grid.heads == 1 && grid.ring == 1) return cat("mesh:", grid.team);
  return "";
}

std::string name_of(const Grid& grid) {
  const std::string scheme = scheme_of(grid);
  return scheme.empty() ? to_text(grid) : scheme;
}

std::vector<Grid> every_grid(int ranks) {
  std::vector<Grid> all;
  for (int heads : divisors(ranks))
    for (int team : divisors(ranks / heads))
      for (int ring : divisors(ranks / heads / team))
        all.push_back({.heads = heads, .team = team, .ring = ring, .stripe = ranks / heads / team / ring});
  return all;
}

bool heads_fit(int slices, int64_t query_heads, int64_t key_heads) {
  return query_heads % slices == 0 && (key_heads % slices == 0 || slices % key_heads == 0);
}

void check_heads(const Grid& grid, int query_heads, int key_heads) {
  if (query_heads < 1 || key_heads < 1)
    throw UserError(cat(query_heads, " heads and ", key_heads, " key/value heads: give 1 or more of each"));
  if (query_heads % key_heads != 0)
    throw UserError(cat(key_heads, " key/value heads do not divide ", query_heads,
                        " heads; valid key/value heads: ", join(divisors(query_heads))));
  if (heads_fit(grid.heads, query_heads, key_heads)) return;
  std::vector<int> valid;
  for (int u : divisors(query_heads))
    if (heads_fit(u, query_heads, key_heads)) valid.push_back(u);
  throw UserError(
      cat("heads axis ", grid.heads, " does not fit ", query_heads, " heads with ", key_heads,
          " key/value heads: it must divide the heads, and divide or be divided by the key/value heads; valid: ",
          join(valid)));
}

}  // namespace startrail

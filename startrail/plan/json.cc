#include "startrail/plan/json.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>

#include "startrail/base/version.h"
#include "startrail/layout/tile.h"
#include "startrail/plan/make.h"
#include "startrail/plan/memory.h"
#include "startrail/plan/summary.h"
#include "startrail/plan/text.h"

namespace startrail {
namespace {

using nlohmann::json;

// Blocks by the place at which they were first named.
class BlockTable {
 public:
  int place(const Block& block) {
    const auto [entry, fresh] = places_.try_emplace(block, static_cast<int>(places_.size()));
    if (fresh) {
      list_.push_back({to_text(block.data), block.chunks});
      if (block.slice != kAllHeads) list_.back().push_back(block.slice);
    }
    return entry->second;
  }
  json take() { return std::move(list_); }

 private:
  std::map<Block, int> places_;
  json list_ = json::array();
};

json step_json(const Step& step, BlockTable& blocks) {
  json list = {to_text(step.op)};
  switch (step.op) {
    case Op::attend:
      list.push_back(blocks.place(step.in));
      list.push_back(blocks.place(step.with));
      return list;
    case Op::exchange:
      list.push_back(sends(step) ? blocks.place(step.in) : -1);
      list.push_back(receives(step) ? blocks.place(step.out) : -1);
      list.push_back(step.to);
      list.push_back(step.from);
      return list;
    case Op::delta:
      list.push_back(blocks.place(step.in));
      list.push_back(blocks.place(step.with));
      list.push_back(blocks.place(step.out));
      return list;
    default: {
      list.push_back(blocks.place(step.in));
      list.push_back(blocks.place(step.out));
      json members = json::array();
      for (const Member& member : step.group) members.push_back(json::array({member.rank, member.chunks}));
      list.push_back(std::move(members));
      return list;
    }
  }
}

json lines_json(const Grid& grid) {
  json lines;
  for (const auto& [name, axis] : {std::pair{"rings", Axis::ring}, std::pair{"teams", Axis::team},
                                   std::pair{"stripes", Axis::stripe}, std::pair{"head_groups", Axis::heads}})
    lines[name] = lines_along(grid, axis);
  return lines;
}

json tokens_json(const Chunks& chunks) {
  json tokens = json::array();
  for (int chunk = 0; chunk < chunks.count(); ++chunk) tokens.push_back(chunks.tokens(chunk));
  return tokens;
}

// Of each query chunk and key chunk, the share of pairs that are seen: three digits, and 0 only where there are none.
json visible_json(const Problem& problem, const Mask& mask) {
  const Band band(mask, problem.queries.total_tokens(), problem.keys.total_tokens());
  json rows = json::array();
  for (int q = 0; q < problem.queries.count(); ++q) {
    json row = json::array();
    const Pieces queries = problem.queries.pieces({q});
    for (int k = 0; k < problem.keys.count(); ++k) {
      const int64_t all = problem.queries.tokens(q) * problem.keys.tokens(k);
      const int64_t seen = all > 0 ? count_pairs(band, queries, problem.keys.pieces({k})) : 0;
      const double share = all > 0 ? static_cast<double>(seen) / static_cast<double>(all) : 0;
      row.push_back(seen > 0 ? std::max(0.001, std::round(share * 1000) / 1000) : 0);
    }
    rows.push_back(std::move(row));
  }
  return rows;
}

json pass_json(const Grid& grid, Pass pass, const Problem& problem, const PlanSubject& subject) {
  const Plan plan = make_plan(grid, pass);
  json one = to_json(plan);
  if (subject.rank) one["ranks"] = json::array({one["ranks"][*subject.rank]});
  json messages = json::array(), held = json::array();
  int64_t leaves = 0;
  for (int rank = 0; rank < grid.ranks(); ++rank) {
    if (subject.cluster) leaves = std::max(leaves, count_crossing(plan, rank, problem, *subject.cluster));
    if (subject.rank && *subject.rank != rank) continue;
    each_message(plan, rank, problem, [&](size_t step, const Message& message, int64_t bytes) {
      messages.push_back({step, rank, message.peer, to_text(message.kind), bytes});
    });
    held.push_back(held_bytes(plan, rank, problem));
  }
  one["messages"] = std::move(messages);
  one["held_bytes"] = std::move(held);
  one["leaves_node"] = subject.cluster ? json(leaves) : json();
  one.update(cost_json(grid, pass, problem));
  return one;
}

}  // namespace

json to_json(const Plan& plan) {
  BlockTable blocks;
  json ranks = json::array();
  for (const Steps& steps : plan.ranks) {
    json list = json::array();
    for (const Step& step : steps) list.push_back(step_json(step, blocks));
    ranks.push_back(std::move(list));
  }
  return {{"pass", to_text(plan.pass)},
          {"slices", plan.slices},
          {"owners", plan.owners},
          {"blocks", blocks.take()},
          {"ranks", std::move(ranks)}};
}

json plan_json(const Grid& grid, const Problem& problem, const PlanSubject& subject) {
  const std::string scheme = scheme_of(grid);
  json told = {{"tokens", problem.queries.total_tokens()},
               {"key_tokens", problem.keys.total_tokens()},
               {"batch", problem.batch},
               {"heads", problem.heads},
               {"kv_heads", problem.key_heads},
               {"dim", problem.dim},
               {"dtype", subject.type},
               {"partial", subject.partial},
               {"mask", to_text(subject.mask)},
               {"layout", subject.layout}};
  json axes, order = json::array(), nodes;
  for (Axis axis : kAxes) axes[to_text(axis)] = grid.size(axis);
  for (Axis axis : grid.order) order.push_back(to_text(axis));
  if (subject.cluster)
    for (int rank = 0; rank < grid.ranks(); ++rank) nodes.push_back(subject.cluster->node_of(rank));
  json all = {{"format", kPlanFormat},
              {"kind", "plan"},
              {"version", kVersion},
              {"name", scheme.empty() ? to_text(grid) : scheme},
              {"grid", to_text(grid)},
              {"ranks", grid.ranks()},
              {"axes", std::move(axes)},
              {"order", std::move(order)},
              {"lines", lines_json(grid)},
              {"problem", std::move(told)},
              {"tokens_of", tokens_json(problem.queries)},
              {"key_tokens_of", tokens_json(problem.keys)},
              {"visible", visible_json(problem, subject.mask)},
              {"nodes", std::move(nodes)},
              {"checked", subject.checked},
              {"backward", to_text(cheaper_backward(grid, problem))}};
  if (subject.rank) all["rank"] = *subject.rank;
  for (Pass pass : kPasses) all["passes"].push_back(pass_json(grid, pass, problem, subject));
  return all;
}

}  // namespace startrail

#include "startrail/plan/json.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>

#include "startrail/base/error.h"
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

template <class Values>
auto value_of(const json& text, const Values& values, const char* what) {
  for (const auto value : values)
    if (text == to_text(value)) return value;
  throw UserError(cat(text.dump(), " is no ", what));
}

// A block by its place; an exchange may have none.
Block block_at(const json& blocks, const json& place, int chunks, bool may_miss = false) {
  const auto at = place.get<int64_t>();
  if (at == -1 && may_miss) return {};
  if (at < 0 || at >= static_cast<int64_t>(blocks.size()))
    throw UserError(cat("block ", at, " is not one of ", blocks.size()));
  const json& stored = blocks[static_cast<size_t>(at)];
  Block block{value_of(stored.at(0), kData, "kind of data"), stored.at(1).get<std::vector<int>>(),
              stored.size() > 2 ? stored[2].get<int>() : kAllHeads};
  for (int chunk : block.chunks)
    if (chunk < 0 || chunk >= chunks) throw UserError(cat("chunk ", chunk, " is not one of ", chunks));
  return block;
}

Step step_from(const json& list, const json& blocks, int ranks, int chunks) {
  Step step{.op = value_of(list.at(0), kOps, "operation")};
  const auto block = [&](size_t i) { return block_at(blocks, list.at(i), chunks, step.op == Op::exchange); };
  const auto rank = [&](const json& number, int least) {
    const auto one = number.get<int64_t>();
    if (one < least || one >= ranks) throw UserError(cat("rank ", one, " is not one of ", ranks));
    return static_cast<int>(one);
  };
  switch (step.op) {
    case Op::attend:
      step.in = block(1), step.with = block(2);
      break;
    case Op::delta:
      step.in = block(1), step.with = block(2), step.out = block(3);
      break;
    case Op::exchange:
      step.in = block(1), step.out = block(2), step.to = rank(list.at(3), -1), step.from = rank(list.at(4), -1);
      break;
    default:
      step.in = block(1), step.out = block(2);
      for (const json& member : list.at(3))
        step.group.push_back({rank(member.at(0), 0), member.at(1).get<std::vector<int>>()});
  }
  return step;
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

Plan plan_from_json(const json& json) try {
  Plan plan;
  plan.pass = value_of(json.at("pass"), kPasses, "pass");
  plan.slices = json.at("slices");
  plan.owners = json.at("owners").get<std::vector<int>>();
  const int ranks = static_cast<int>(json.at("ranks").size());
  for (int owner : plan.owners)
    if (owner < 0 || owner >= ranks) throw UserError(cat("rank ", owner, " is not one of ", ranks));
  for (const auto& steps : json.at("ranks")) {
    plan.ranks.emplace_back();
    for (const auto& step : steps)
      plan.ranks.back().push_back(step_from(step, json.at("blocks"), ranks, plan.chunks()));
  }
  return plan;
} catch (const nlohmann::json::exception&) {
  throw UserError("a key is missing, or of another type");
}

json plan_json(const Grid& grid, const Problem& problem, const PlanSubject& subject) {
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
              {"name", name_of(grid)},
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
              {"backward", to_text(subject.backward.value_or(cheaper_backward(grid, problem)))}};
  if (subject.rank) all["rank"] = *subject.rank;
  for (Pass pass : kPasses) all["passes"].push_back(pass_json(grid, pass, problem, subject));
  return all;
}

}  // namespace startrail

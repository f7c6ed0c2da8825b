// Plans from files for the page. What a file says of itself is looked at: the page trusts what it is given.
#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "cli/page/page.h"
#include "startrail/base/error.h"
#include "startrail/plan/check.h"
#include "startrail/plan/json.h"

namespace startrail::cli {
namespace {

using nlohmann::json;

void need(bool holds, const std::string& what) {
  if (!holds) throw UserError(what);
}

// A list of `size` lists of numbers, each of `lengths(i)`.
template <class Lengths>
void need_rows(const json& rows, size_t size, const char* name, const Lengths& lengths) {
  need(rows.size() == size, cat(name, " has ", rows.size(), " rows where there are ", size));
  for (size_t i = 0; i < size; ++i)
    need(rows.at(i).get<std::vector<double>>().size() == lengths(i), cat(name, " has a row of another length"));
}

void check_pass(const json& pass, size_t ranks, bool& proved) {
  const Plan plan = plan_from_json(pass);
  need(plan.ranks.size() == ranks && plan.owners == own_chunk_each(static_cast<int>(ranks)),
       cat("a pass is not of ", ranks, " ranks with a chunk each"));
  try {
    check_plan(plan);
  } catch (const UserError&) {
    proved = false;  // it is shown all the same, and the page says what is wrong with it
  }
  std::map<std::string, std::vector<int64_t>> sent;  // by kind and in all, of each rank
  for (const char* kind : {"total", "p2p", "gather", "merge", "all_to_all"}) sent[kind].resize(ranks);
  for (const json& message : pass.at("messages")) {
    const auto step = message.at(0).get<size_t>(), from = message.at(1).get<size_t>(), to = message.at(2).get<size_t>();
    need(from < ranks && to < ranks && step < plan.ranks[from].size(),
         "a message is between ranks or of a step that there are not");
    const auto kind = sent.find(message.at(3).get<std::string>());
    need(kind != sent.end(), "a message is of a kind that there is not");
    kind->second[from] += message.at(4).get<int64_t>();
    sent["total"][from] += message.at(4).get<int64_t>();
  }
  for (const auto& [kind, of] : sent)
    need(pass.at("volume").at(kind).get<int64_t>() == *std::ranges::max_element(of),
         cat("its messages are not of as many bytes as its volume says (", kind, ")"));
  need_rows(pass.at("held_bytes"), ranks, "held_bytes", [&](size_t rank) { return plan.ranks[rank].size() + 1; });
  for (const auto& [kind, of] : sent) pass.at("ring_volume").at(kind).get<int64_t>();
  for (const char* name : {"peak_bytes", "ring_peak_bytes"}) pass.at(name).get<int64_t>();
}

void check_lines(const json& plan, size_t ranks) {
  for (const char* name : {"rings", "teams", "stripes", "head_groups"}) {
    std::vector<bool> seen(ranks);
    for (const json& line : plan.at("lines").at(name))
      for (const json& rank : line) seen.at(rank.get<size_t>()) = true;
    need(std::find(seen.begin(), seen.end(), false) == seen.end(), cat(name, " leave out a rank"));
  }
  for (const char* axis : {"heads", "team", "ring", "stripe"}) plan.at("axes").at(axis).get<int>();
  for (const json& axis : plan.at("order")) plan.at("axes").at(axis.get<std::string>());
}

}  // namespace

json plan_view(json plan, const std::filesystem::path& file) {
  const std::string again = "; write it again with startrail plan --json";
  if (plan.value("format", json()) != kPlanFormat)
    throw UserError(cat(file.string(), " has a plan in another form", again));
  if (plan.contains("rank"))
    throw UserError(cat(file.string(), " has the steps of one rank only: leave out --rank in startrail plan --json"));
  try {
    const auto ranks = plan.at("ranks").get<size_t>();
    need(ranks == plan.at("passes").at(0).at("ranks").size(), "its passes are not of so many ranks");
    for (const char* name : {"name", "grid", "backward"}) plan.at(name).get<std::string>();
    for (const char* name : {"mask", "layout", "dtype", "partial"}) plan.at("problem").at(name).get<std::string>();
    for (const char* name : {"tokens", "key_tokens", "batch", "heads", "kv_heads", "dim"})
      plan.at("problem").at(name).get<int64_t>();
    for (const char* name : {"tokens_of", "key_tokens_of"})
      need(plan.at(name).get<std::vector<int64_t>>().size() == ranks, cat(name, " has not a number for each chunk"));
    need_rows(plan.at("visible"), ranks, "visible", [&](size_t) { return ranks; });
    if (!plan.at("nodes").is_null())
      need(plan["nodes"].get<std::vector<int>>().size() == ranks, "nodes has not a number for each rank");
    check_lines(plan, ranks);
    need(plan["passes"].size() == std::size(kPasses), "it has not three passes");
    bool proved = true;
    for (const json& pass : plan["passes"]) check_pass(pass, ranks, proved);
    plan["checked"] = proved;
    plan["file"] = file.string();
  } catch (const json::exception&) {
    throw UserError(cat(file.string(), " is no whole plan: a key is missing, or of another type", again));
  } catch (const std::out_of_range&) {
    throw UserError(cat(file.string(), " is no whole plan: it names a rank that there is not", again));
  } catch (const UserError& error) {
    throw UserError(cat(file.string(), " is no whole plan: ", error.what(), again));
  }
  return plan;
}

}  // namespace startrail::cli

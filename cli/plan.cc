// startrail plan: a grid's rings, steps, volumes and memory, and the proof that its plans are right.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <atomic>
#include <chrono>
#include <iostream>
#include <nlohmann/json.hpp>
#include <optional>

#include "cli/command.h"
#include "cli/shape.h"
#include "cli/world.h"
#include "startrail/base/error.h"
#include "startrail/base/threads.h"
#include "startrail/plan/check.h"
#include "startrail/plan/json.h"
#include "startrail/plan/make.h"
#include "startrail/plan/summary.h"
#include "startrail/plan/text.h"

namespace startrail::cli {
namespace {

struct PlanFlags {
  ShapeFlags shape;
  int all = 0;
  std::optional<int> rank, ranks_per_node;
  bool check = false, json = false;
};

void show(const PlanFlags& flags) {
  const AttentionOptions options = flags.shape.options();
  const Problem problem = flags.shape.problem(options);
  const Grid& grid = options.grid;
  if (flags.rank && (*flags.rank < 0 || *flags.rank >= grid.ranks()))
    throw UserError(cat("rank ", *flags.rank, " is not one of ", grid.ranks(), ": give 0 to ", grid.ranks() - 1));
  std::optional<Cluster> cluster;
  if (flags.ranks_per_node) cluster = make_cluster(grid.ranks(), *flags.ranks_per_node);
  if (flags.check)
    for (Pass pass : kPasses) {
      const Plan plan = make_plan(grid, pass);
      check_plan(plan);
      check_volume(plan, grid, {problem});
    }
  if (flags.json) {
    PlanSubject subject = flags.shape.subject(options);
    subject.cluster = cluster;
    subject.rank = flags.rank;
    subject.checked = flags.check;
    std::cout << plan_json(grid, problem, subject).dump() << "\n";
    return;
  }
  std::cout << lines_text(grid) << steps_text(grid, problem, flags.rank.value_or(0)) << "\n"
            << flags.shape.tokens << " tokens, " << flags.shape.heads << " heads (" << flags.shape.kv_heads()
            << " key/value), dim " << flags.shape.dim << ", " << flags.shape.dtype << "\n";
  std::cout << costs_text(grid, problem, cluster);
  if (flags.check)
    std::cout
        << "\nproved for forward and both backwards: every pair of chunks meets once, every message is received,\n"
           "every block is there when it is read, no rank waits for ever even where messages have no tags,\n"
           "bytes equal the formulas\n";
}

// Problems that exercise the formulas: even, uneven, grouped and copied key/value heads.
std::vector<Problem> problems_for(const Grid& grid) {
  const int u = grid.heads, ranks = grid.ranks();
  const auto make = [&](int heads, int key_heads, int element, int64_t tokens, int64_t key_tokens) {
    return make_problem({.batch = 2, .heads = heads, .key_heads = key_heads, .dim = 8, .element_bytes = element},
                        {Order::zigzag, tokens, ranks}, {Order::zigzag, key_tokens, ranks});
  };
  std::vector<Problem> problems{make(2 * u, 2 * u, 4, 64 * ranks, 64 * ranks),
                                make(4 * u, u, 2, 37 * ranks + 5, 19 * ranks + 3)};
  if (u % 2 == 0) problems.push_back(make(2 * u, u / 2, 2, 11 * ranks + 1, 11 * ranks + 1));
  return problems;
}

void check_all(int most, bool as_json) {
  if (most < 1 || most > 512) throw UserError(cat("--all ", most, " is not possible: give 1 to 512 ranks"));
  const auto start = std::chrono::steady_clock::now();
  std::vector<Grid> grids;
  for (int ranks = 1; ranks <= most; ++ranks)
    for (const Grid& grid : every_grid(ranks)) grids.push_back(grid);
  Progress progress("proving");
  std::atomic<size_t> next{0}, plans{0};
  const auto work = [&] {
    for (size_t i; (i = next++) < grids.size();) {
      if (i % 64 == 0) progress.show(cat("proving ", to_text(grids[i]), " (", i, " of ", grids.size(), ")"));
      for (Pass pass : kPasses) {
        const Plan plan = make_plan(grids[i], pass);
        check_plan(plan);
        check_volume(plan, grids[i], problems_for(grids[i]));
        ++plans;
      }
    }
  };
  run_threads(
      available_cores(), [&](int) { work(); }, [&](int, const std::exception_ptr&) { next = grids.size(); });
  progress.show("");
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  if (as_json) {
    std::cout << nlohmann::json{{"proved", plans.load()}, {"most_ranks", most}, {"seconds", seconds}}.dump(2) << "\n";
    return;
  }
  std::cout << "proved " << plans << " plans: every grid of 1 to " << most << " ranks, forward and both backwards, in "
            << fixed(seconds, 1) << " s\n";
}

}  // namespace

void add_plan(CLI::App& app) {
  auto flags = std::make_shared<PlanFlags>();
  CLI::App* command =
      app.add_subcommand("plan", "Show a grid's rings, steps, volumes and memory; prove that they are right");
  flags->shape.add_to(*command);
  command->add_option("--rank", flags->rank, "Whose steps to show (default: 0; JSON: all)");
  command->add_option("--ranks-per-node", flags->ranks_per_node,
                      "Also count the bytes that leave a node of so many ranks");
  command->add_flag("--check", flags->check, "Prove coverage, matching, readiness, progress, and bytes = formula");
  command->add_option("--all", flags->all,
                      "With --check: prove every grid of every rank count up to this (axes in the usual order)");
  command->add_flag("--json", flags->json, "Print the whole plan as JSON, for programs and for startrail show");
  command->footer(
      "Examples:\n"
      "  startrail plan --ranks 16 --grid startrail:2\n"
      "  startrail plan --ranks 16 --grid team=4 --rank 3 --check\n"
      "  startrail plan --check --all 64");
  command->callback([flags, command] {
    refuse_many("plan");
    if (command->count("--all") == 0) return show(*flags);
    if (!flags->check) throw UserError("--all goes with --check: it proves every grid up to so many ranks");
    for (const char* other : {"--ranks", "--grid", "--rank"})
      if (command->count(other)) throw UserError(cat("--all proves every grid of every rank count: leave out ", other));
    check_all(flags->all, flags->json);
  });
}

}  // namespace startrail::cli

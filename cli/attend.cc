// startrail attend: one distributed attention, forward and backward, with its time, bytes, memory and error.
#include <ATen/Parallel.h>
#include <c10/core/ScalarType.h>
#include <CLI/CLI.hpp>

#include <algorithm>
#include <iostream>
#include <nlohmann/json.hpp>
#include <set>

#include "cli/command.h"
#include "cli/shape.h"
#include "cli/spread.h"
#include "cli/world.h"
#include "startrail/base/error.h"
#include "startrail/base/file.h"
#include "startrail/base/threads.h"
#include "startrail/plan/check.h"
#include "startrail/plan/make.h"
#include "startrail/plan/text.h"
#include "startrail/run/trial.h"

namespace startrail::cli {
namespace {

struct AttendFlags {
  ShapeFlags shape;
  CommFlags comm;
  int threads = 0, repeat = 3;
  uint64_t seed = 1;
  std::string kernel = "auto", profile;
  bool check = false, json = false;
};

struct Report {
  int computing = 1;  // ranks that can compute at a time
  std::vector<std::string> nodes;
  std::string comm;
  AttentionOptions options;
  Pass backward = Pass::backward_keys;
  Problem problem;
  Spread forward_ms, backward_ms, single_ms;
  Spread traced_ms;  // both, where they are recorded
  TrialRun last;
  Errors errors, limits, pytorch_errors;
  std::vector<int64_t>
      work;  // of each rank in a forward pass: unmasked pairs, counted in every head and batch row it has
  bool passed = true;
};

nlohmann::json max_mean(const std::vector<int64_t>& values) {
  double sum = 0;
  for (int64_t value : values) sum += static_cast<double>(value);
  return {{"max", *std::max_element(values.begin(), values.end())}, {"mean", sum / static_cast<double>(values.size())}};
}

// {p2p: {max, mean}, ...} over ranks.
nlohmann::json volumes_json(int ranks, const std::function<Volume(int)>& of_rank) {
  nlohmann::json json;
  for (Traffic kind : kTraffic) {
    std::vector<int64_t> values;
    for (int rank = 0; rank < ranks; ++rank) values.push_back(of_rank(rank)[kind]);
    json[to_text(kind)] = max_mean(values);
  }
  return json;
}

nlohmann::json errors_json(const Errors& errors) {
  return {{"out", errors.out}, {"dq", errors.dq}, {"dk", errors.dk}, {"dv", errors.dv}};
}

// What every process must have been told alike.
std::map<std::string, std::string> facts_of(const AttendFlags& flags, const AttentionOptions& options) {
  const ShapeFlags& s = flags.shape;
  return {{"grid", to_text(options.grid)},
          {"tokens", cat(s.tokens, " and ", s.key_tokens.value_or(s.tokens), " keys")},
          {"heads", cat(s.heads, " and ", s.kv_heads(), " for keys")},
          {"batch", cat(s.batch)},
          {"dim", cat(s.dim)},
          {"mask", to_text(options.mask)},
          {"layout", s.layout},
          {"types", cat(s.dtype, " ", s.partial)},
          {"backward", s.backward},
          {"kernel", flags.kernel},
          {"seed", cat(flags.seed)},
          {"repeat", cat(flags.repeat, flags.check ? " with --check" : "")},
          {"profile", flags.profile.empty() ? "no" : "yes"}};
}

// What a trace shows and under which conditions.
nlohmann::json about_trace(const AttendFlags& flags, const Report& report, const TrialRun& traced, const World& world) {
  const ShapeFlags& s = flags.shape;
  double waiting = 0, seconds = 0;
  for (const RankReport& rank : traced.ranks) {
    waiting += rank.wait_seconds;
    seconds += rank.seconds;
  }
  return {{"source", "measured"},
          {"name", cat(name_of(report.options.grid), " on ", plural(s.ranks, "rank"))},
          {"what", "one attention, forward and backward"},
          {"grid", to_text(report.options.grid)},
          {"ranks", s.ranks},
          {"threads_each", world.threads_each(flags.threads)},
          {"ranks_here", world.ranks_here()},
          {"comm", world.name()},
          {"tokens", s.tokens},
          {"batch", s.batch},
          {"heads", s.heads},
          {"kv_heads", s.kv_heads()},
          {"dim", s.dim},
          {"mask", to_text(report.options.mask)},
          {"layout", s.layout},
          {"precision", s.dtype},
          {"wait_share", waiting / seconds}};
}

Report run(AttendFlags& flags) {
  ProcessWorld* const processes = flags.comm.open();
  set_ranks(flags.shape.ranks, *flags.shape.ranks_option, processes);
  Report report;
  report.options = flags.shape.options();
  AttentionOptions& options = report.options;
  options.kernel = flags.kernel;
  choose_kernel(options.kernel, flags.shape.type(), at::kCPU, flags.shape.dim);
  if (flags.repeat < 1) throw UserError(cat("repeat ", flags.repeat, " measures nothing: give 1 or more"));
  if (flags.threads < 0 || flags.threads > 1024)
    throw UserError(cat(flags.threads, " threads cannot run: give 1 to 1024, or 0 for all cores"));
  const int threads = flags.threads > 0 ? flags.threads : available_cores();
  report.problem = flags.shape.problem(options);
  report.backward = backward_pass(options, report.problem);
  AttentionOptions single = options;
  single.grid = Grid{};
  if (processes) processes->compare(facts_of(flags, options));
  const std::shared_ptr<World> shared = world_of(processes, flags.shape.ranks);
  World& world = *shared;
  const bool first = world.first() == 0;
  if (!flags.profile.empty())
    world.once([&] {
      check_writable(flags.profile, "--profile");
      return std::string();
    });
  report.nodes = world.nodes();
  report.comm = world.name();
  // On many hosts those of each.
  report.computing = std::min(flags.shape.ranks, threads * flags.shape.ranks / world.ranks_here());

  Progress progress("drawing inputs");
  at::set_num_threads(threads);
  const int64_t key_tokens = options.key_tokens > 0 ? options.key_tokens : options.tokens;
  const Sample sample = make_sample(
      {flags.shape.batch, flags.shape.heads, flags.shape.kv_heads(), flags.shape.dim, flags.shape.type(), flags.seed},
      options.tokens, key_tokens);
  std::vector<double> forward, backward, alone, traced;
  TrialRun one, recorded;
  // Ranks and one device take turns, after one round of each to warm up, so that a slow moment hits both.
  for (int round = flags.repeat > 1 ? -1 : 0; round < flags.repeat; ++round) {
    const std::string which = round < 0 ? "warming up" : cat("round ", round + 1, " of ", flags.repeat);
    progress.show(cat(which, ": one rank"));
    world.doing(which);
    if (first) one = run_trial(sample, single, threads);  // where ranks are processes the others wait
    progress.show(cat(which, ": ", flags.shape.ranks, " ranks"));
    report.last = run_trial(sample, options, world, flags.threads);
    if (!flags.profile.empty()) {  // in rounds of their own, beside the others, so that what recording costs is known
      progress.show(cat(which, ": recorded"));
      recorded = run_trial(sample, options, world, flags.threads, /*traced=*/true);
    }
    if (round < 0) continue;
    traced.push_back(recorded.forward_ms + recorded.backward_ms);
    forward.push_back(report.last.forward_ms);
    backward.push_back(report.last.backward_ms);
    alone.push_back(one.forward_ms + one.backward_ms);
  }
  report.forward_ms = spread(forward);
  report.backward_ms = spread(backward);
  report.single_ms = spread(alone);
  report.traced_ms = spread(traced);
  if (!flags.profile.empty() && first)
    write_traces(flags.profile, recorded.traces.texts, about_trace(flags, report, recorded, world),
                 recorded.traces.shift_us);

  for (int rank = 0; rank < flags.shape.ranks; ++rank)
    report.work.push_back(rank_work(make_steps(options.grid, Pass::forward, rank), report.problem, options.mask) *
                          flags.shape.batch * flags.shape.heads / options.grid.heads);

  if (flags.check && first) {
    progress.show("computing the float64 reference");
    at::set_num_threads(threads);
    for (Pass pass : {Pass::forward, report.backward}) check_plan(make_plan(options.grid, pass));
    const Answer truth = exact_answer(sample, options.mask, options.scale);
    progress.show("computing PyTorch's own answer");
    const Answer pytorch = pytorch_answer(sample, options.mask, options.scale);
    report.errors = compare(report.last.answer, truth, sample, options.scale);
    report.pytorch_errors = compare(pytorch, truth, sample, options.scale);
    report.limits = tolerance(flags.shape.type(), report.pytorch_errors);
    report.passed = within(report.errors, report.limits);
    for (int rank = 0; rank < flags.shape.ranks; ++rank)
      report.passed =
          report.passed &&
          report.last.ranks[rank].forward == formula_volume(options.grid, Pass::forward, rank, report.problem) &&
          report.last.ranks[rank].backward == formula_volume(options.grid, report.backward, rank, report.problem);
  }
  return report;
}

// By step, the share of what the ranks' threads could have used of the processor in the last round.
std::map<Op, double> time_shares(const Report& report) {
  const double whole = report.computing * (report.last.forward_ms + report.last.backward_ms) / 1000;
  std::map<Op, double> shares;
  for (const RankReport& rank : report.last.ranks)
    for (const auto& [op, seconds] : rank.busy_seconds) shares[op] += seconds / whole;
  return shares;
}

void print_json(const AttendFlags& flags, const Report& report) {
  const int ranks = flags.shape.ranks;
  const Grid& grid = report.options.grid;
  const auto& measured = report.last.ranks;
  const auto formula = [&](Pass pass) {
    return volumes_json(ranks, [&](int rank) { return formula_volume(grid, pass, rank, report.problem); });
  };
  std::vector<int64_t> peaks, crossing;
  double wait = 0, processor = 0;
  for (const RankReport& rank : measured) {
    processor += rank.processor_seconds;
    crossing.push_back(rank.crossing_bytes);
    peaks.push_back(rank.peak_bytes);
    wait += rank.wait_seconds * 1000 / ranks;
  }
  nlohmann::json work = max_mean(report.work);
  work["min"] = *std::min_element(report.work.begin(), report.work.end());
  nlohmann::json shares;
  for (const auto& [op, share] : time_shares(report)) shares[to_text(op)] = share;
  nlohmann::json json = {
      {"grid", {{"heads", grid.heads}, {"team", grid.team}, {"ring", grid.ring}, {"stripe", grid.stripe}}},
      {"ranks", ranks},
      {"comm", report.comm},
      {"nodes", report.nodes},
      {"backward", report.backward == Pass::backward_keys ? "keys" : "queries"},
      {"forward_ms", report.forward_ms.median},
      {"backward_ms", report.backward_ms.median},
      {"single_ms", report.single_ms.median},
      {"traced_ms", flags.profile.empty() ? nlohmann::json() : nlohmann::json(report.traced_ms.median)},
      {"wait_ms", wait},
      {"processor_s", processor},
      {"time_shares", shares},
      {"bytes",
       {{"forward", volumes_json(ranks, [&](int rank) { return measured[rank].forward; })},
        {"backward", volumes_json(ranks, [&](int rank) { return measured[rank].backward; })}}},
      {"formula_bytes", {{"forward", formula(Pass::forward)}, {"backward", formula(report.backward)}}},
      {"steps",
       {{"forward", make_steps(grid, Pass::forward, 0).size()},
        {"backward", make_steps(grid, report.backward, 0).size()}}},
      {"crossing_bytes", max_mean(crossing)},
      {"peak_bytes", max_mean(peaks)},
      {"work", work},
  };
  if (flags.check) {
    json["error"] = errors_json(report.errors);
    json["pytorch_error"] = errors_json(report.pytorch_errors);
    json["tolerance"] = errors_json(report.limits);
    json["passed"] = report.passed;
  }
  std::cout << json.dump(2) << "\n";
}

std::string scientific(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.1e", value);
  return text;
}

void print_table(const AttendFlags& flags, const Report& report) {
  const int ranks = flags.shape.ranks;
  const Grid& grid = report.options.grid;
  const Grid ring{.ring = ranks};
  std::cout << flags.shape.grid << " on " << ranks << " ranks (" << to_text(grid) << "), " << flags.shape.tokens
            << " tokens, " << flags.shape.heads << " heads, dim " << flags.shape.dim << ", "
            << to_text(report.options.mask) << ", " << flags.shape.layout << ", " << flags.shape.dtype << "\n\n";
  // The busiest rank's bytes, beside what Ring Attention would send for the same attention.
  const Pass ring_backward = cheaper_backward(ring, report.problem);
  std::vector<std::vector<std::string>> rows{
      {"sent by the busiest rank", "p2p", "gather", "merge", "all_to_all", "total", "of ring's"}};
  const auto row = [&](const std::string& name, Pass ring_pass, Volume RankReport::*sent) {
    Volume most;
    int64_t total = 0, ring_total = 0;
    for (int rank = 0; rank < ranks; ++rank) {
      const Volume& volume = report.last.ranks[rank].*sent;
      for (Traffic kind : kTraffic) most[kind] = std::max(most[kind], volume[kind]);
      total = std::max(total, volume.total());
      ring_total = std::max(ring_total, formula_volume(ring, ring_pass, rank, report.problem).total());
    }
    std::vector<std::string> cells{name};
    for (Traffic kind : kTraffic) cells.push_back(human_bytes(static_cast<double>(most[kind])));
    cells.push_back(human_bytes(static_cast<double>(total)));
    cells.push_back(ring_total > 0 ? fixed(static_cast<double>(total) / static_cast<double>(ring_total), 3) : "-");
    rows.push_back(cells);
  };
  row("forward", Pass::forward, &RankReport::forward);
  row(report.backward == Pass::backward_keys ? "backward (keys ride)" : "backward (queries ride)", ring_backward,
      &RankReport::backward);
  std::cout << table(rows);
  const std::set<std::string> nodes(report.nodes.begin(), report.nodes.end());
  if (nodes.size() > 1) {
    int64_t most = 0, all = 0;
    for (const RankReport& rank : report.last.ranks) {
      most = std::max(most, rank.crossing_bytes);
      all += rank.crossing_bytes;
    }
    std::cout << "  between the " << nodes.size() << " nodes go " << human_bytes(static_cast<double>(all))
              << " of all ranks together, " << human_bytes(static_cast<double>(most)) << " from the busiest\n";
  }
  std::cout << "\n";

  const auto times = [](const Spread& s) {
    return std::vector<std::string>{fixed(s.min, 1), fixed(s.median, 1), fixed(s.max, 1)};
  };
  rows = {{"milliseconds", "min", "median", "max"}};
  const auto add_times = [&](const std::string& name, const Spread& s) {
    rows.push_back({name});
    for (const std::string& cell : times(s)) rows.back().push_back(cell);
  };
  add_times("forward", report.forward_ms);
  add_times("backward", report.backward_ms);
  add_times("one rank, both", report.single_ms);
  if (!flags.profile.empty()) add_times("both, recorded", report.traced_ms);
  std::cout << table(rows);
  const double both = report.forward_ms.median + report.backward_ms.median;
  std::cout << "  " << ranks << " ranks take " << fixed(both / report.single_ms.median, 2)
            << " x one rank with the same threads\n\n";

  std::cout << "  processor time          ";
  double rest = 1;
  for (const auto& [op, share] : time_shares(report)) {
    std::cout << to_text(op) << " " << fixed(100 * share, 1) << "%, ";
    rest -= share;
  }
  std::cout << "other and idle " << fixed(100 * std::max(0.0, rest), 1) << "%\n";
  int64_t peak = 0;
  for (const RankReport& rank : report.last.ranks) peak = std::max(peak, rank.peak_bytes);
  std::cout << "  peak memory of a rank   " << human_bytes(static_cast<double>(peak)) << "\n";
  const auto [least, most] = std::minmax_element(report.work.begin(), report.work.end());
  const double mean = max_mean(report.work)["mean"];
  std::cout << "  work of a rank          " << counted(*least) << " to " << counted(*most)
            << " unmasked pairs of a query and a key, in all its heads and batch rows; max/mean "
            << (mean > 0 ? fixed(static_cast<double>(*most) / mean, 3) : "-") << "\n";
  if (!flags.check) return;
  rows = {{"error", "out", "dq", "dk", "dv"}};
  const auto add_errors = [&](const std::string& name, const Errors& e) {
    rows.push_back({name, scientific(e.out), scientific(e.dq), scientific(e.dk), scientific(e.dv)});
  };
  add_errors(cat(ranks, " ranks"), report.errors);
  add_errors("PyTorch, one device", report.pytorch_errors);
  add_errors("allowed", report.limits);
  std::cout << "\n"
            << table(rows) << "  " << (report.passed ? "passed" : "FAILED")
            << ": against a float64 reference, and bytes against the formulas\n";
}

}  // namespace

void add_attend(CLI::App& app) {
  auto flags = std::make_shared<AttendFlags>();
  CLI::App* command = app.add_subcommand(
      "attend", "Run one attention split over ranks, forward and backward: time, bytes, memory, error");
  flags->shape.add_to(*command);
  flags->comm.add_to(*command);
  command->add_option("--threads", flags->threads, "Threads for all ranks of a host together (default: all cores)");
  command->add_option("--repeat", flags->repeat, "Timed rounds, interleaved with one rank's")->capture_default_str();
  command->add_option("--seed", flags->seed, "Of the random inputs")->capture_default_str();
  command->add_option("--kernel", flags->kernel, "auto, flash, aten or reference")->capture_default_str();
  command->add_flag("--check", flags->check,
                    "Prove the plan, compare with a float64 reference and the byte formulas; exit 1 if wrong");
  command
      ->add_option("--profile", flags->profile,
                   "Record rounds of their own, and write the last as a trace for startrail show and Perfetto")
      ->type_name("FILE");
  command->add_flag("--json", flags->json, "Print JSON");
  command->footer(
      "Examples:\n"
      "  startrail attend --ranks 16 --grid startrail:2 --check\n"
      "  startrail attend --ranks 8 --grid heads=2,team=2,ring=2 --heads 8 --kv-heads 2 --dtype bfloat16 --check\n"
      "  startrail launch --processes 8 -- attend --check\n"
      "  startrail attend --ranks 16 --grid mesh:4 --mask causal --documents 1000,96,3000 --json");
  command->callback([flags] {
    const Report report = run(*flags);
    flags->json ? print_json(*flags, report) : print_table(*flags, report);
    if (!report.passed) throw Exit{1};
  });
}

}  // namespace startrail::cli

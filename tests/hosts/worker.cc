// One rank of a test that a launcher starts as processes: draws cases of attention, runs each over the processes, and
// on rank 0 once more on local ranks. Results must be equal to the bit, bytes counted too, and memory within the plan.
// usage: hosts_worker <cases> <seed>
#include <ATen/ATen.h>
#include <unistd.h>

#include <cstdio>
#include <iostream>

#include "startrail/base/error.h"
#include "startrail/run/footprint_testing.h"
#include "startrail/run/hosts/process_world.h"
#include "tests/exactness.h"

namespace startrail {
namespace {

std::string difference(const TrialRun& run, const TrialRun& local, const AttentionOptions& options,
                       const Problem& problem, at::ScalarType type) {
  const auto same = [](const at::Tensor& a, const at::Tensor& b) { return at::equal(a, b); };
  if (!same(run.answer.out, local.answer.out)) return "out differs";
  if (!same(run.answer.dq, local.answer.dq)) return "dq differs";
  if (!same(run.answer.dk, local.answer.dk)) return "dk differs";
  if (!same(run.answer.dv, local.answer.dv)) return "dv differs";
  for (size_t rank = 0; rank < run.ranks.size(); ++rank) {
    const RankReport &here = run.ranks[rank], &there = local.ranks[rank];
    if (here.forward != there.forward || here.backward != there.backward)
      return cat("rank ", rank, " sent other bytes");
    const int64_t most = expected_bytes(options, problem, type, static_cast<int>(rank), /*threads=*/1);
    if (here.peak_bytes > most)
      return cat("rank ", rank, " held ", here.peak_bytes, " bytes (on local ranks ", there.peak_bytes,
                 "), its plan says ", most);
  }
  return "";
}

int run(int cases, uint64_t seed) {
  const auto launched = find_launched(process_environment, launcher_of);
  if (!launched) throw UserError("start it with a launcher");
  const auto world = ProcessWorld::open(*launched, {.version = "worker"});
  RandomCases random(seed);
  int done = 0, failed = 0;
  while (done < cases) {
    const WholeSequence sequence = random.sequence(/*longest=*/1600);
    const auto split = random.split(world->size(), sequence);
    if (!split) continue;
    AttentionOptions options;
    options.grid = split->grid;
    options.order = split->order;
    options.listed = split->listed;
    options.backward = split->direction;
    options.tokens = sequence.tokens;
    options.mask = sequence.mask;
    options.kernel = "flash";
    const Sample sample = make_sample({.batch = 1,
                                       .heads = sequence.heads,
                                       .key_heads = sequence.key_heads,
                                       .dim = sequence.dim,
                                       .type = split->type,
                                       .seed = sequence.seed},
                                      sequence.tokens, sequence.tokens);
    const TrialRun run = run_trial(sample, options, *world, /*threads=*/world->size());
    ++done;
    if (world->first() != 0) continue;
    const Problem problem = make_problem(options, 1, static_cast<int>(sequence.heads),
                                         static_cast<int>(sequence.key_heads), sequence.dim, split->type);
    const std::string wrong =
        difference(run, run_trial(sample, options, /*threads=*/world->size()), options, problem, split->type);
    if (wrong.empty()) continue;
    ++failed;
    std::cout << to_text(*split) << ", " << sequence.tokens << " tokens, " << sequence.heads << "/"
              << sequence.key_heads << " heads of " << sequence.dim << ", " << to_text(sequence.mask) << ": " << wrong
              << std::endl;
  }
  if (world->first() == 0)
    std::cout << done << " cases on " << world->size() << " processes, " << failed << " failed" << std::endl;
  return failed > 0;
}

}  // namespace
}  // namespace startrail

int main(int argc, char** argv) {
  try {
    const int code = argc == 3 ? startrail::run(std::atoi(argv[1]), std::strtoull(argv[2], nullptr, 10)) : 2;
    _exit(code);
  } catch (const std::exception& error) {
    std::cerr << error.what() << std::endl;
    _exit(3);
  }
}

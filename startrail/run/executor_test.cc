// Plans that no grid makes: attending some chunks of what is held while others are on their way, merging row by row,
// several chunks a rank. attention_test.cc has the grids'.
#include "startrail/run/executor.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "startrail/base/trace.h"
#include "startrail/plan/check.h"
#include "startrail/plan/make.h"
#include "startrail/plan/memory.h"
#include "startrail/plan/text.h"
#include "startrail/run/comm/ranks.h"
#include "startrail/run/memory.h"
#include "startrail/run/trial.h"

namespace startrail {
namespace {

constexpr int kHeads = 4, kKeyHeads = 2;
constexpr int64_t kDim = 8;

// Chunks of 5, 6, 7, ... tokens, one after the other: no two are alike.
Chunks uneven_chunks(int count) {
  std::vector<Pieces> pieces;
  for (int64_t chunk = 0, first = 0; chunk < count; first += 5 + chunk++) pieces.push_back({{first, 5 + chunk, 1}});
  return Chunks(pieces);
}

ExecutorOptions make_options(const Plan& plan, at::ScalarType type, const Mask& mask) {
  Problem problem{.batch = 1,
                  .heads = kHeads,
                  .key_heads = kKeyHeads,
                  .dim = kDim,
                  .element_bytes = static_cast<int>(c10::elementSize(type)),
                  .partial_bytes = type == at::kDouble ? 8 : 4,
                  .stat_bytes = type == at::kDouble ? 8 : 4,
                  .queries = uneven_chunks(plan.chunks()),
                  .keys = uneven_chunks(plan.chunks())};
  const int64_t tokens = problem.queries.total_tokens();
  const at::ScalarType wide = type == at::kDouble ? at::kDouble : at::kFloat;
  return {.head = plan,
          .problem = std::move(problem),
          .band = Band(mask, tokens, tokens),
          .scale = 1 / std::sqrt(static_cast<double>(kDim)),
          .element = at::TensorOptions(type),
          .accumulator = wide,
          .partial = wide,
          .kernel = &choose_kernel("auto", type, at::kCPU, kDim),
          .on_step = {}};
}

// The tokens of a rank's chunks of a whole sequence [1, heads, tokens, dim], as a block has them.
at::Tensor own_rows(const at::Tensor& whole, const ExecutorOptions& options, int rank) {
  std::vector<at::Tensor> rows{whole.narrow(2, 0, 0)};
  for (const Piece& piece : options.problem.queries.pieces(options.head.owned_by(rank)))
    rows.push_back(whole.narrow(2, piece.first, piece.count));
  return at::cat(rows, 2).permute({2, 0, 1, 3}).unsqueeze(1).contiguous();
}

at::Tensor as_rows(const at::Tensor& block, int64_t plane) { return block.select(1, plane).permute({1, 2, 0, 3}); }

struct Saved {
  at::Tensor q, kv, out, lse;
};

// Runs a forward plan and, with what it left, a backward one, and compares each rank's results with the exact answer.
void expect_exact(const std::string& forward_text, const std::string& backward_text, at::ScalarType type,
                  double limit) {
  const Plan forward = plan_from_text(forward_text), backward = plan_from_text(backward_text);
  ASSERT_NO_THROW(check_plan(forward));
  ASSERT_NO_THROW(check_plan(backward));
  const int ranks = static_cast<int>(forward.ranks.size());
  const int64_t tokens = uneven_chunks(forward.chunks()).total_tokens();
  for (const Mask& mask : {Mask{}, Mask{.causal = true}, Mask{.window = 9}}) {
    const Sample sample =
        make_sample({.heads = kHeads, .key_heads = kKeyHeads, .dim = kDim, .type = type}, tokens, tokens);
    const Answer truth = exact_answer(sample, mask, 0);
    run_ranks(ranks, 2, [&](const std::shared_ptr<Group>& group) {
      const int rank = group->rank();
      const auto close = [&](const at::Tensor& got, const at::Tensor& whole, const ExecutorOptions& options) {
        const at::Tensor expected = as_rows(own_rows(whole, options, rank), 0);
        return expected.numel() == 0 || (got.to(at::kDouble) - expected).abs().max().item<double>() <= limit;
      };
      const std::vector<int> own = forward.owned_by(rank);
      const ExecutorOptions options = make_options(forward, type, mask);
      Executor executor(options, *group, forward.ranks[rank], results_of(forward, rank));
      const at::Tensor q = own_rows(sample.q, options, rank);
      const at::Tensor kv = at::cat({own_rows(sample.k, options, rank), own_rows(sample.v, options, rank)}, 1);
      executor.put({Data::query, own, kAllHeads}, {q});
      executor.put({Data::keys, own, kAllHeads}, {kv});
      executor.run();
      Tensors out;
      if (!own.empty()) out = executor.take({Data::out, own, kAllHeads});
      executor.finish();
      if (!own.empty()) {
        EXPECT_TRUE(close(as_rows(out[0], 0), truth.out, options)) << "out on rank " << rank;
      }

      const ExecutorOptions back = make_options(backward, type, mask);
      Executor reverse(back, *group, backward.ranks[rank], results_of(backward, rank));
      reverse.put({Data::out_grad, own, kAllHeads}, {own_rows(sample.dout, back, rank)});
      reverse.put({Data::keys, own, kAllHeads}, {kv});
      if (own.empty())
        reverse.put({Data::saved, own, kAllHeads}, {q, q, q.select(4, 0)});
      else
        reverse.put({Data::saved, own, kAllHeads}, {q, out[0].to(type), out[1]});
      reverse.run();
      if (!own.empty()) {
        const Tensors dq = reverse.take({Data::query_grad, own, kAllHeads});
        const Tensors dkv = reverse.take({Data::keys_grad, own, kAllHeads});
        EXPECT_TRUE(close(as_rows(dq[0], 0), truth.dq, back)) << "dq on rank " << rank;
        EXPECT_TRUE(close(as_rows(dkv[0], 0), truth.dk, back)) << "dk on rank " << rank;
        EXPECT_TRUE(close(as_rows(dkv[0], 1), truth.dv, back)) << "dv on rank " << rank;
      }
      reverse.finish();
    });
  }
}

// A team of three whose members begin with their own rows, take each gathered chunk as it comes and give every other
// row away as soon as it is done.
constexpr const char* kRowsForward = R"(plan forward ranks 3 slices 1
rank 0
  gather query 0 -> query 0,1,2 over 0:0 1:1 2:2
  attend query 0 x keys 0
  attend query 1 x keys 0
  merge out 1 -> out none over 0:none 1:1 2:none
  attend query 2 x keys 0
  merge out 2 -> out none over 0:none 1:none 2:2
  merge out 0 -> out 0 over 0:0 1:none 2:none
rank 1
  gather query 1 -> query 0,1,2 over 0:0 1:1 2:2
  attend query 1 x keys 1
  attend query 2,0 x keys 1
  merge out 1 -> out 1 over 0:none 1:1 2:none
  merge out 2 -> out none over 0:none 1:none 2:2
  merge out 0 -> out none over 0:0 1:none 2:none
rank 2
  gather query 2 -> query 0,1,2 over 0:0 1:1 2:2
  attend query 0,2 x keys 2
  attend query 1 x keys 2
  merge out 1 -> out none over 0:none 1:1 2:none
  merge out 2 -> out 2 over 0:none 1:none 2:2
  merge out 0 -> out none over 0:0 1:none 2:none
)";
constexpr const char* kRowsBackward = R"(plan backward_keys ranks 3 slices 1
rank 0
  delta out_grad 0 with saved 0 -> query 0
  gather query 0 -> query 0,1,2 over 0:0 1:1 2:2
  attend query 0,2 x keys 0
  attend query 1 x keys 0
  merge query_grad 0,1,2 -> query_grad 0 over 0:0 1:1 2:2
rank 1
  delta out_grad 1 with saved 1 -> query 1
  gather query 1 -> query 0,1,2 over 0:0 1:1 2:2
  attend query 1 x keys 1
  attend query 0 x keys 1
  attend query 2 x keys 1
  merge query_grad 0,1,2 -> query_grad 1 over 0:0 1:1 2:2
rank 2
  delta out_grad 2 with saved 2 -> query 2
  gather query 2 -> query 0,1,2 over 0:0 1:1 2:2
  attend query 2,1,0 x keys 2
  merge query_grad 0,1,2 -> query_grad 2 over 0:0 1:1 2:2
)";

// Five chunks on three ranks, one of which owns none; keys are sent in part and in another order than they lie, and two
// ranks do the work of the third.
constexpr const char* kPartsForward = R"(plan forward ranks 3 slices 1 owners 0,0,1,0,1
rank 0
  exchange keys 3,0 to 1
  exchange keys 2,4 from 1
  exchange query 1 to 2
  exchange keys 0,1,3 to 2
  attend query 0,3 x keys 0,1,3
  attend query 0,3 x keys 4
  attend query 3,0 x keys 2
  attend query 1 x keys 4
  exchange out 1 from 2
rank 1
  exchange keys 3,0 from 0
  exchange keys 2,4 to 0
  attend query 2,4 x keys 2,4
  attend query 2,4 x keys 3,0
  exchange query 2,4 to 2
  exchange keys 2 to 2
  exchange out 4,2 from 2
rank 2
  exchange query 1 from 0
  exchange keys 0,1,3 from 0
  exchange query 2,4 from 1
  attend query 4,2 x keys 1
  exchange keys 2 from 1
  attend query 1 x keys 0,1,3
  attend query 1 x keys 2
  exchange out 4,2 to 1
  exchange out 1 to 0
)";
constexpr const char* kPartsBackward = R"(plan backward_queries ranks 3 slices 1 owners 0,0,1,0,1
rank 0
  delta out_grad 0,1,3 with saved 0,1,3 -> query 0,1,3
  exchange query 3,0 to 1
  exchange query 2,4 from 1
  attend query 0,1,3 x keys 0,1,3
  attend query 4 x keys 0,3
  attend query 2 x keys 3,0
  exchange query 2,4 to 2
  exchange keys 1 to 2
  exchange query 1 to 2
  exchange query_grad 0,3 from 1
  exchange query_grad 2,4 to 1
  exchange query_grad 1 from 2
  exchange keys_grad 1 from 2
rank 1
  delta out_grad 2,4 with saved 2,4 -> query 2,4
  exchange query 3,0 from 0
  exchange query 2,4 to 0
  attend query 2,4 x keys 4,2
  attend query 3,0 x keys 2,4
  exchange keys 2,4 to 2
  exchange query_grad 0,3 to 0
  exchange query_grad 2,4 from 0
  exchange query_grad 2,4 from 2
  exchange keys_grad 4,2 from 2
rank 2
  exchange query 2,4 from 0
  exchange keys 1 from 0
  attend query 4,2 x keys 1
  exchange query 1 from 0
  exchange keys 2,4 from 1
  attend query 1 x keys 4,2
  exchange query_grad 1 to 0
  exchange keys_grad 1 to 0
  exchange query_grad 2,4 to 1
  exchange keys_grad 4,2 to 1
)";

TEST(FreePlan, IsExactWithRowsAsTheyComeAndGo) {
  expect_exact(kRowsForward, kRowsBackward, at::kDouble, 1e-12);
  expect_exact(kRowsForward, kRowsBackward, at::kFloat, 1e-5);
}

TEST(FreePlan, IsExactWithPartsOfBlocksAndRanksWithoutTokens) {
  expect_exact(kPartsForward, kPartsBackward, at::kDouble, 1e-12);
  expect_exact(kPartsForward, kPartsBackward, at::kFloat, 1e-5);
}

// What is measured on every rank is at most what the plan says, also for these.
TEST(FreePlan, HoldsAtMostWhatItsMemoryIsSaidToBe) {
  for (const char* text : {kRowsForward, kPartsForward}) {
    const Plan plan = plan_from_text(text);
    run_ranks(3, 2, [&](const std::shared_ptr<Group>& group) {
      const int rank = group->rank();
      ExecutorOptions options = make_options(plan, at::kFloat, {});
      options.kernel = &choose_kernel("flash", at::kFloat, at::kCPU, kDim);
      const Scratch scratch = [&](int64_t queries, int64_t keys) {
        return options.kernel->scratch_bytes(
            {.heads = kHeads, .key_heads = kKeyHeads, .queries = queries, .keys = keys, .dim = kDim}, 1);
      };
      const auto account = std::make_shared<MemoryAccount>();
      {
        const MemoryScope scope(account);
        Executor executor(options, *group, plan.ranks[rank], results_of(plan, rank));
        const std::vector<int> own = plan.owned_by(rank);
        const int64_t tokens = options.problem.queries.tokens(own);
        executor.put({Data::query, own, kAllHeads}, {at::ones({tokens, 1, 1, kHeads, kDim})});
        executor.put({Data::keys, own, kAllHeads}, {at::ones({tokens, 2, 1, kKeyHeads, kDim})});
        executor.run();
        executor.finish();
      }
      EXPECT_LE(account->peak_bytes, peak_bytes(plan, rank, options.problem, scratch)) << "rank " << rank;
    });
  }
}

// The events of a run can be laid beside its plan.
TEST(Executor, WritesPassLayerStepAndBlockIntoTheTrace) {
  const Grid grid = parse_grid("heads=1,team=2,ring=2", 4);
  const Sample sample = make_sample({.heads = 2, .key_heads = 2, .dim = 4}, 64, 64);
  std::vector<std::shared_ptr<RankTrace>> traces(4);
  run_ranks(4, 2, [&](const std::shared_ptr<Group>& group) {
    const int rank = group->rank();
    traces[rank] = std::make_shared<RankTrace>(rank);
    group->meter().record_to(traces[rank]);
    AttentionOptions options;
    options.grid = grid;
    options.tokens = 64;
    options.layer = 3;
    const auto own = [&](const at::Tensor& t) { return t.narrow(2, 16 * rank, 16); };
    attention_forward(own(sample.q), own(sample.k), own(sample.v), options, group);
  });
  for (int rank = 0; rank < 4; ++rank) {
    const Steps steps = make_steps(grid, Pass::forward, rank);
    std::vector<std::string> spans, expected;
    const auto check = [&](const TraceLabel& label) {
      EXPECT_EQ(label.pass, "forward");
      EXPECT_EQ(label.layer, 3);
      EXPECT_LT(label.step, static_cast<int64_t>(steps.size()));
    };
    for (const TraceEvent& event : traces[rank]->events()) {
      if (event.kind == TraceKind::turn) continue;
      check(event.label);
      if (event.kind == TraceKind::wait) continue;
      EXPECT_EQ(cat(event.name, " ", event.label.block), to_text(steps.at(event.label.step)));
      if (static_cast<size_t>(event.label.step) == spans.size()) spans.push_back(event.name);
    }
    int sent = 0, received = 0;
    for (const TraceMessage& message : traces[rank]->messages()) {
      check(message.label);
      EXPECT_NE(to_text(steps.at(message.label.step)).find(message.label.block.substr(0, 3)), std::string::npos);
      ++(message.sent ? sent : received);
    }
    for (const Step& step : steps) expected.push_back(to_text(step.op));
    EXPECT_EQ(spans, expected);  // every step, in order
    EXPECT_EQ(sent, 1 + 1 + 2);  // gather, ring, and out with its lse
    EXPECT_EQ(received, sent);
  }
}

}  // namespace
}  // namespace startrail

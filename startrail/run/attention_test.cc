#include "startrail/run/attention.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>

#include "startrail/base/error.h"
#include "startrail/plan/make.h"
#include "startrail/run/comm/ranks.h"
#include "startrail/run/trial.h"

namespace startrail {
namespace {

AttentionOptions make_options(const std::string& grid, int ranks, int64_t tokens, const Mask& mask = {.causal = true},
                              Order order = Order::zigzag) {
  AttentionOptions options;
  options.grid = parse_grid(grid, ranks);
  options.tokens = tokens;
  options.mask = mask;
  options.order = order;
  return options;
}

// In float64 the data flow is right or wrong: rounding hides nothing.
void expect_exact(const AttentionOptions& options, const TrialShape& shape, const std::string& what) {
  const int64_t key_tokens = options.key_tokens > 0 ? options.key_tokens : options.tokens;
  const Sample sample = make_sample(shape, options.tokens, key_tokens);
  const Errors errors =
      compare(run_trial(sample, options, 2).answer, exact_answer(sample, options.mask, options.scale), sample, 0);
  EXPECT_TRUE(within(errors, tolerance(at::kDouble, {}))) << what << " " << to_text(options.grid) << ": " << errors.out
                                                          << " " << errors.dq << " " << errors.dk << " " << errors.dv;
}

TEST(Attention, IsExactOnEveryGridOf16InBothDirections) {
  for (const Grid& grid : every_grid(16)) {
    AttentionOptions options = make_options(to_text(grid), 16, 70);
    for (Direction direction : {Direction::keys, Direction::queries}) {
      options.backward = direction;
      expect_exact(options,
                   {.batch = 2, .heads = 16, .key_heads = grid.heads % 8 == 0 ? 2 : 8, .dim = 4, .type = at::kDouble},
                   direction == Direction::keys ? "keys" : "queries");
    }
  }
}

TEST(Attention, IsExactInEveryOrderOfAxes) {
  for (const char* order : {"stripe-ring-team-heads", "ring-heads-stripe-team", "team-stripe-heads-ring"})
    expect_exact(make_options(cat("heads=2,team=2,ring=2,stripe=2,order=", order), 16, 61),
                 {.heads = 4, .key_heads = 2, .dim = 4, .type = at::kDouble}, order);
}

TEST(Attention, IsExactForFewerTokensThanRanks) {
  for (const char* grid : {"ring", "startrail:2", "allgather", "ulysses", "heads=2,team=2,ring=2"})
    for (int64_t tokens : {1, 3, 7})
      for (Order order : {Order::contiguous, Order::zigzag, Order::striped})
        expect_exact(make_options(grid, 8, tokens, {.causal = true}, order),
                     {.heads = 8, .dim = 4, .type = at::kDouble}, cat(tokens, " tokens, ", to_text(order)));
}

TEST(Attention, IsExactForUnequalLengths) {
  for (const char* grid : {"ring", "startrail:2", "heads=2,team=2,stripe=2"})
    for (const auto& [tokens, key_tokens] : {std::pair<int64_t, int64_t>{50, 13}, {5, 90}}) {
      AttentionOptions options = make_options(grid, 8, tokens, {}, Order::contiguous);
      options.key_tokens = key_tokens;
      expect_exact(options, {.heads = 4, .key_heads = 4, .dim = 4, .type = at::kDouble},
                   cat(tokens, " x ", key_tokens));
    }
}

TEST(Attention, SendsExactlyWhatTheFormulasSay) {
  for (const Grid& grid : every_grid(12))
    for (at::ScalarType type : {at::kFloat, at::kBFloat16})
      for (Direction direction : {Direction::keys, Direction::queries}) {
        AttentionOptions options = make_options(to_text(grid), 12, 12 * 5 + 7);
        options.backward = direction;
        const TrialShape shape{
            .batch = 2, .heads = 12, .key_heads = grid.heads % 3 == 0 ? 3 : 4, .dim = 8, .type = type};
        if (grid.heads % shape.key_heads != 0 && shape.key_heads % grid.heads != 0) continue;
        const Problem problem = make_problem(options, shape.batch, static_cast<int>(shape.heads),
                                             static_cast<int>(shape.key_heads), shape.dim, type);
        const TrialRun run = run_trial(make_sample(shape, options.tokens, options.tokens), options, 2);
        const Pass backward = direction == Direction::keys ? Pass::backward_keys : Pass::backward_queries;
        for (int rank = 0; rank < 12; ++rank) {
          EXPECT_EQ(run.ranks[rank].forward, formula_volume(grid, Pass::forward, rank, problem)) << to_text(grid);
          EXPECT_EQ(run.ranks[rank].backward, formula_volume(grid, backward, rank, problem)) << to_text(grid);
        }
      }
}

TEST(Attention, StarTrail2SendsTwoFifthsOfRingsPointToPointBytes) {
  const TrialShape shape{.heads = 2, .key_heads = 2, .dim = 16};
  const Sample sample = make_sample(shape, 256, 256);
  const auto forward = [&](const char* grid) {
    return run_trial(sample, make_options(grid, 16, 256), 2).ranks[3].forward;
  };
  const Volume ring = forward("ring"), star = forward("startrail:2"), team4 = forward("team=4");
  const int64_t unit = 256 / 16 * 2 * 16 * 4;  // A in bytes
  const auto without_lse = [&](const Volume& v) { return v.total() - v[Traffic::merge] / (16 + 1); };
  EXPECT_EQ(ring[Traffic::p2p], 30 * unit);
  EXPECT_EQ(star[Traffic::p2p], 12 * unit);
  EXPECT_EQ(without_lse(star), 16 * unit);
  EXPECT_EQ(without_lse(team4), 12 * unit);
}

TEST(Attention, GivesZeroAndNoNanForRowsThatSeeNothing) {
  for (at::ScalarType type : {at::kFloat, at::kBFloat16})
    for (const char* grid : {"startrail:2", "ring", "heads=2,team=2,stripe=2"}) {
      const AttentionOptions options = make_options(grid, 8, 64, {.causal = true, .padding = 40});
      const Answer answer =
          run_trial(make_sample({.heads = 4, .key_heads = 4, .dim = 8, .type = type}, 64, 64), options, 2).answer;
      for (const at::Tensor& t : {answer.out, answer.dq, answer.dk, answer.dv}) {
        EXPECT_TRUE(at::isfinite(t).all().item<bool>()) << grid;
        EXPECT_EQ(t.narrow(2, 24, 40).abs().max().item<double>(), 0) << grid;
        EXPECT_GT(t.narrow(2, 0, 24).abs().max().item<double>(), 0) << grid;
      }
    }
}

TEST(Attention, IsNoWorseThanTwiceOneDeviceForLargeScores) {
  // Unit-normal q . k / sqrt(dim) is about 1, so a gain of 1e4 makes scores of +-1e4.
  const Sample sample = make_sample({.heads = 2, .key_heads = 2, .dim = 16, .query_gain = 1e4}, 300, 300);
  const Mask mask{.causal = true};
  const Answer truth = exact_answer(sample, mask, 0);
  const Errors one = compare(pytorch_answer(sample, mask, 0), truth, sample, 0);
  EXPECT_GT(one.dq, 1e-4);  // hard inputs indeed
  for (const char* grid : {"ring", "startrail:2", "allgather"}) {
    const Errors errors = compare(run_trial(sample, make_options(grid, 16, 300), 2).answer, truth, sample, 0);
    EXPECT_TRUE(within(errors, tolerance(at::kFloat, one)))
        << grid << ": " << errors.out << " " << errors.dq << " " << errors.dk << " " << errors.dv << " against "
        << one.out << " " << one.dq << " " << one.dk << " " << one.dv;
  }
}

TEST(Attention, GivesTheSameBitsEveryTime) {
  const Sample sample = make_sample({.heads = 4, .key_heads = 2, .dim = 8}, 333, 333);
  const AttentionOptions options = make_options("heads=2,team=2,ring=2,stripe=2", 16, 333);
  const Answer first = run_trial(sample, options, 2).answer;
  for (int i = 0; i < 3; ++i) {
    const Answer again = run_trial(sample, options, 2).answer;
    EXPECT_TRUE(at::equal(first.out, again.out) && at::equal(first.dq, again.dq) && at::equal(first.dk, again.dk) &&
                at::equal(first.dv, again.dv));
  }
}

TEST(Attention, SendsBfloat16PartialsOnlyWhenAsked) {
  const Sample sample = make_sample({.heads = 2, .key_heads = 2, .dim = 16, .type = at::kBFloat16}, 128, 128);
  AttentionOptions options = make_options("mesh:4", 16, 128);
  const Volume wide = run_trial(sample, options, 2).ranks[0].forward;
  options.partial = at::kBFloat16;
  const TrialRun narrow = run_trial(sample, options, 2);
  EXPECT_EQ(wide[Traffic::merge] - narrow.ranks[0].forward[Traffic::merge], 3 * 8 * 2 * 16 * 2);
  EXPECT_TRUE(
      within(compare(narrow.answer, exact_answer(sample, options.mask, 0), sample, 0), tolerance(at::kBFloat16, {})));
}

TEST(Attention, WorksOnModelTensorsWithoutGradients) {
  // [tokens, heads, dim] transposed, as a model's projection gives it, and no gradient asked for.
  run_ranks(4, 2, [](const std::shared_ptr<Group>& group) {
    const AttentionOptions options = make_options("startrail:2", 4, 32);
    const at::Tensor x = at::ones({1, 8, 3 * 2 * 4}).unflatten(2, {3, 2, 4}).permute({2, 0, 3, 1, 4});
    const at::Tensor out = attention(x[0], x[1], x[2], options, group);
    EXPECT_EQ(out.sizes(), x[0].sizes());
    EXPECT_FALSE(out.requires_grad());
    EXPECT_TRUE(at::allclose(out, x[2]));
  });
}

TEST(Attention, IsMadeOfPlainForwardAndBackwardFunctions) {
  const Sample sample = make_sample({.heads = 4, .key_heads = 2, .dim = 4, .type = at::kDouble}, 40, 40);
  const Answer truth = exact_answer(sample, {.causal = true}, 0);
  for (const char* grid : {"startrail:2", "heads=4,team=2", "heads=2,stripe=4"})
    run_ranks(8, 2, [&](const std::shared_ptr<Group>& group) {
      const AttentionOptions options = make_options(grid, 8, 40, {.causal = true}, Order::contiguous);
      const auto own = [&](const at::Tensor& t) { return t.narrow(2, 5 * group->rank(), 5); };
      const AttentionResult result = attention_forward(own(sample.q), own(sample.k), own(sample.v), options, group);
      EXPECT_TRUE(at::allclose(result.out, own(truth.out), 1e-12, 1e-12)) << grid;
      const auto [dq, dk, dv] = attention_backward(own(sample.dout), result.saved, options, group);
      EXPECT_TRUE(at::allclose(dq, own(truth.dq), 1e-12, 1e-12)) << grid;
      EXPECT_TRUE(at::allclose(dk, own(truth.dk), 1e-12, 1e-12)) << grid;
      EXPECT_TRUE(at::allclose(dv, own(truth.dv), 1e-12, 1e-12)) << grid;
      EXPECT_THROW(attention_backward(own(sample.dout)[0], result.saved, options, group), UserError);
    });
}

// Options and plans that are kept give the bits of those that are made at every call.
TEST(Attention, IsTheSameWhenPrepared) {
  for (const char* grid : {"startrail:2", "heads=2,ring=2"}) {
    const AttentionOptions options = make_options(grid, 4, 61);
    run_ranks(4, 2, [&](const std::shared_ptr<Group>& group) {
      const int64_t own = chunk_tokens(query_layout(options), group->rank());
      const PreparedAttention prepared(options, {.batch = 2, .heads = 4, .key_heads = 2, .dim = 8}, group->rank(), 4);
      for (int round = 0; round < 2; ++round) {
        const at::Tensor q = at::randn({2, 4, own, 8}), k = at::randn({2, 2, own, 8}), v = at::randn({2, 2, own, 8});
        const AttentionResult kept = attention_forward(q, k, v, prepared, *group),
                              made = attention_forward(q, k, v, options, group);
        EXPECT_TRUE(kept.out.equal(made.out));
        const auto back = attention_backward(kept.out, kept.saved, prepared, *group);
        const auto again = attention_backward(kept.out, kept.saved, options, group);
        for (int i = 0; i < 3; ++i) EXPECT_TRUE(back[i].equal(again[i]));
      }
      // Whatever does not fit is refused before anything is read or sent.
      const auto refuse = [&](const at::Tensor& q, const at::Tensor& k, const at::Tensor& v) {
        EXPECT_THROW(attention_forward(q, k, v, prepared, *group), UserError);
      };
      const at::Tensor q = at::zeros({2, 4, own, 8}), k = at::zeros({2, 2, own, 8});
      refuse(at::zeros({2, 4, own + 1, 8}), k, k);
      refuse(q, at::zeros({1, 2, own, 8}), at::zeros({1, 2, own, 8}));  // another batch
      refuse(q, at::zeros({2, 2, own, 4}), at::zeros({2, 2, own, 4}));  // another dim
      refuse(q, k, at::zeros({2, 2, own + 1, 8}));
      refuse(q, k.to(at::kInt), k.to(at::kInt));
      refuse(q.to(at::kDouble), k.to(at::kDouble), k.to(at::kDouble));  // alike, but not what was prepared
      refuse(q[0], k[0], k[0]);
    });
  }
}

TEST(Attention, RestoresWhatTheForwardSaved) {
  for (const char* grid : {"ring", "startrail:2", "heads=2,team=2,ring=2", "usp:4", "ulysses"})
    for (at::ScalarType type : {at::kFloat, at::kBFloat16}) {
      // With 4 slices or 8 the 2 key heads are copied.
      const Sample sample = make_sample({.batch = 2, .heads = 8, .key_heads = 2, .dim = 4, .type = type}, 43, 43);
      run_ranks(8, 2, [&](const std::shared_ptr<Group>& group) {
        const AttentionOptions options = make_options(grid, 8, 43);
        const Layout layout{options.order, 43, 8};
        int64_t first = 0;
        for (int rank = 0; rank < group->rank(); ++rank) first += chunk_tokens(layout, rank);
        const auto own = [&](const at::Tensor& t) { return t.narrow(2, first, chunk_tokens(layout, group->rank())); };
        const at::Tensor q = own(sample.q), k = own(sample.k), v = own(sample.v);
        const SavedAttention saved = attention_forward(q, k, v, options, group).saved;
        group->meter().reset();
        const SavedAttention again =
            attention_restore(q.clone(), k.clone(), v.clone(), saved.out, saved.lse, options, group);
        const Volume sent = group->meter().counts().sent();
        EXPECT_EQ(sent.total(), sent[Traffic::all_to_all]) << grid;
        EXPECT_EQ(sent.total() > 0, options.grid.heads > 1) << grid;
        EXPECT_TRUE(at::equal(again.q, saved.q)) << grid << " " << type;
        EXPECT_TRUE(at::equal(again.kv, saved.kv)) << grid << " " << type;
        EXPECT_TRUE(again.out.is_same(saved.out) && again.lse.is_same(saved.lse)) << grid;
        EXPECT_EQ(again.key_heads, 2);
        const auto expected = attention_backward(own(sample.dout), saved, options, group);
        const auto got = attention_backward(own(sample.dout), again, options, group);
        for (size_t i = 0; i < 3; ++i) EXPECT_TRUE(at::equal(got[i], expected[i])) << grid << " " << type << " " << i;
      });
    }
}

std::string refusal(const std::function<void(AttentionOptions&, at::Tensor&, at::Tensor&)>& spoil) {
  try {
    run_ranks(4, 2, [&](const std::shared_ptr<Group>& group) {
      AttentionOptions options = make_options("ring", 4, 32);
      at::Tensor q = at::ones({1, 4, 8, 4}), k = at::ones({1, 2, 8, 4});
      spoil(options, q, k);
      attention(q, k, k, options, group);
    });
  } catch (const UserError& error) {
    return error.what();
  }
  return "accepted";
}

TEST(Attention, RefusesWhatDoesNotFitBeforeSendingAnything) {
  using T = at::Tensor;
  using O = AttentionOptions;
  EXPECT_EQ(refusal([](O&, T&, T&) {}), "accepted");
  EXPECT_EQ(refusal([](O& o, T&, T&) { o.grid = parse_grid("ring", 8); }),
            "grid heads=1,team=1,ring=8,stripe=1 is for 8 ranks, but the group has 4: they must be equal");
  EXPECT_NE(refusal([](O& o, T&, T&) { o.tokens = 40; }).find("layout zigzag of 40 tokens over 4 ranks gives it 10"),
            std::string::npos);
  EXPECT_EQ(refusal([](O& o, T&, T&) { o.tokens = 0; }), "0 tokens cannot be split: give 1 or more");
  EXPECT_NE(refusal([](O&, T& q, T&) { q = q[0]; }).find("give [batch, heads, local tokens, dim]"), std::string::npos);
  EXPECT_NE(refusal([](O&, T& q, T&) { q = q.to(at::kHalf); }).find("they must be alike"), std::string::npos);
  EXPECT_NE(refusal([](O&, T& q, T& k) {
              q = q.to(at::kHalf), k = k.to(at::kHalf);
            }).find("valid types: float32, bfloat16, float64"),
            std::string::npos);
  EXPECT_NE(refusal([](O&, T& q, T&) {
              q = at::ones({1, 3, 8, 4});
            }).find("2 key/value heads do not divide 3 heads"),
            std::string::npos);
  EXPECT_NE(refusal([](O& o, T&, T&) { o.mask.documents = {5}; }).find("documents add up to 5"), std::string::npos);
  EXPECT_NE(refusal([](O& o, T&, T&) { o.kernel = "fast"; }).find("valid kernels"), std::string::npos);
  EXPECT_NE(refusal([](O& o, T&, T&) { o.partial = at::kInt; }).find("cannot be sent as Int"), std::string::npos);
  EXPECT_NE(refusal([](O&, T& q, T& k) { q = q.narrow(0, 0, 0), k = k.narrow(0, 0, 0); }).find("holds nothing"),
            std::string::npos);
}

// The others' tiles take seconds; a rank that fails before its own must not wait for them.
TEST(Attention, StopsRanksThatComputeOrWaitForTheirTurn) {
  const Sample sample = make_sample({.heads = 8, .key_heads = 8, .dim = 64}, 4096, 4096);
  AttentionOptions options = make_options("ring", 16, 4096);
  options.kernel = "reference";  // slow: many seconds in all
  std::chrono::steady_clock::time_point failed;
  options.on_step = [&](int rank, size_t index, const Step&) {
    if (rank != 3 || index != 3) return;
    failed = std::chrono::steady_clock::now();
    throw std::runtime_error("the disk is on fire");
  };
  EXPECT_THROW(run_trial(sample, options, 2), ClusterError);
  EXPECT_LT(std::chrono::steady_clock::now() - failed, std::chrono::seconds(1));
}

// Every rank, at every step of both passes: the run ends at once and says where.
TEST(Attention, StopsEveryRankWhenAnyStepOfAnyRankFails) {
  const Sample sample = make_sample({.heads = 2, .key_heads = 2, .dim = 4}, 64, 64);
  for (const char* grid : {"startrail:2", "heads=2,team=2,ring=1,stripe=2", "ring"})
    for (Pass pass : {Pass::forward, Pass::backward_keys, Pass::backward_queries}) {
      AttentionOptions options = make_options(grid, 8, 64);
      options.backward = pass == Pass::backward_queries ? Direction::queries : Direction::keys;
      const size_t steps = make_steps(options.grid, pass, 0).size();
      const size_t before = pass == Pass::forward ? 0 : make_steps(options.grid, Pass::forward, 0).size();
      for (size_t failing = 0; failing < steps; ++failing) {
        const int bad_rank = static_cast<int>((failing * 3 + 1) % 8);
        std::vector<std::atomic<size_t>> taken(8);  // steps each rank has begun, over both passes
        options.on_step = [&](int rank, size_t, const Step&) {
          if (taken[rank]++ == before + failing && rank == bad_rank) throw std::runtime_error("the disk is on fire");
        };
        const auto start = std::chrono::steady_clock::now();
        try {
          run_trial(sample, options, 2);
          FAIL() << grid << " step " << failing << " went on";
        } catch (const ClusterError& error) {
          const std::string expected = cat("rank ", bad_rank, ", ", pass == Pass::forward ? "forward" : "backward");
          EXPECT_NE(std::string(error.what()).find(expected), std::string::npos) << error.what();
          EXPECT_NE(std::string(error.what()).find(cat("step ", failing, " (")), std::string::npos) << error.what();
          EXPECT_NE(std::string(error.what()).find("the disk is on fire"), std::string::npos) << error.what();
        }
        EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(1)) << grid << " step " << failing;
      }
    }
}

}  // namespace
}  // namespace startrail

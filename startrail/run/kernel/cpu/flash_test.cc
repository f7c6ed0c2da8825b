#include "startrail/run/kernel/cpu/flash.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <atomic>
#include <bit>
#include <cmath>

#include "startrail/base/error.h"
#include "startrail/run/kernel/cpu/flash_fuzz.h"
#include "startrail/run/kernel/kernel_testing.h"

namespace startrail {
namespace {

TEST(FlashKernel, MatchesTheReferenceForEveryMaskAndLayout) {
  for (const Tried& level : tried())
    for (Order order : {Order::contiguous, Order::zigzag, Order::striped})
      for (int64_t tokens : {17, 100})
        for (const Mask& mask : masks_of(tokens)) {
          const Case c{.mask = mask, .order = order, .tokens = tokens};
          compare(*level.kernel, c, at::kFloat, 3e-6, level.name + " float32");
          compare(*level.kernel, c, at::kBFloat16, level.pairs ? 1.5e-2 : 3e-6, level.name + " bfloat16");
        }
}

TEST(FlashKernel, MatchesOnManyBlocks) {
  for (const Tried& level : tried())
    for (const Mask& mask : masks_of(2403))
      compare(*level.kernel, {.mask = mask, .tokens = 2403, .heads = 1, .key_heads = 1, .dim = 8, .batch = 1},
              at::kFloat, 4e-6, level.name + " many blocks");
}

TEST(FlashKernel, MatchesForAnyDimAndHeads) {
  for (const Tried& level : tried()) {
    for (int64_t dim : {1, 3, 8, 20, 24, 32, 40, 64, 80, 96, 128, 256}) {
      compare(*level.kernel, {.mask = {.causal = true}, .dim = dim}, at::kFloat, 4e-6, cat(level.name, " dim ", dim));
      compare(*level.kernel, {.mask = {.causal = true}, .dim = dim}, at::kBFloat16, level.pairs ? 1.5e-2 : 4e-6,
              cat(level.name, " bfloat16 dim ", dim));
    }
    for (int64_t key_heads : {1, 2, 3, 6})
      compare(*level.kernel, {.mask = {.causal = true}, .heads = 6, .key_heads = key_heads}, at::kFloat, 4e-6,
              cat(level.name, " key heads ", key_heads));
  }
}

TEST(FlashKernel, KeepsTinyAndHugeValues) {
  for (const Tried& level : tried()) {
    compare(*level.kernel, {.mask = {.causal = true}, .dout_gain = 1e-25}, at::kFloat, 4e-6,
            level.name + " dout 1e-25");
    compare(*level.kernel, {.mask = {.causal = true}, .dout_gain = 0}, at::kFloat, 4e-6, level.name + " dout 0");
    const Case c{.mask = {.causal = true}, .gain = 1e4};
    expect_close(run(*level.kernel, c, at::kFloat, at::kFloat), truth_of(c), 1e-2, level.name + " scores of 1e4");
  }
}

// A processor may add the halves of a pair in another order than the code for what is not finite does.
bool same(const at::Tensor& a, const at::Tensor& b, bool pairs) {
  return pairs ? ((a - b).abs().max() <= 1e-6 * b.abs().max()).item<bool>() : at::equal(a, b);
}

// One row of q, k, v or dout is not finite: so are all results that it is a part of, and nothing else changes. The
// reference keeps to that, too.
TEST(FlashKernel, KeepsInfinitiesAndNaNWhereTheyBelong) {
  struct Judged {
    std::string name;
    const Kernel* kernel;
    bool pairs;
  };
  const std::vector<Tried> levels = tried();
  std::vector<Judged> all{{"reference", &reference_kernel(), false}};
  for (const Tried& level : levels) all.push_back({level.name, level.kernel.get(), level.pairs});
  const int64_t tokens = 200, dim = 16;
  const Band band({.causal = true, .window = 60}, tokens, tokens);
  const Pieces pieces{{0, tokens}};
  for (const Judged& level : all)
    for (at::ScalarType type : {at::kFloat, at::kBFloat16})
      for (double poison : {std::nan(""), kInfinity, -kInfinity})
        for (const char* where : {"q", "k", "v", "dout"}) {
          at::manual_seed(3);
          const auto draw = [&] { return at::randn({1, 2, tokens, dim}).to(type); };
          at::Tensor q = draw(), k = draw(), v = draw(), dout = draw();
          const int64_t row = 70;
          at::Tensor& hit = *where == 'q' ? q : *where == 'k' ? k : *where == 'v' ? v : dout;
          const auto both = [&] {
            const AttendInput input{q, k, v, pieces, pieces, &band, 0.25};
            Running running{at::zeros({1, 2, tokens, dim}), at::full({1, 2, tokens}, -kInfinity)};
            level.kernel->attend(input, running);
            // Clean lse and delta: what this test asks of the backward is where its own inputs go.
            Gradients g{at::zeros({1, 2, tokens, dim}), at::zeros({1, 2, tokens, dim}), at::zeros({1, 2, tokens, dim})};
            level.kernel->attend_backward({input, dout, at::zeros({1, 2, tokens}), at::zeros({1, 2, tokens})}, g);
            return std::vector<at::Tensor>{running.out, g.dq, g.dk, g.dv};
          };
          const std::vector<at::Tensor> clean = both();
          hit.select(2, row).fill_(poison);
          const std::vector<at::Tensor> got = both();
          const bool of_keys = *where == 'k' || *where == 'v';
          for (size_t i = 0; i < got.size(); ++i) {
            const bool by_query = i < 2;  // rows of out and dq are queries, of dk and dv keys
            // Which rows may change: those the poisoned row sees or is seen by, and itself where both are of one side.
            int64_t begin = row, end = row + 1;
            if (by_query && of_keys) end = row + 60;
            if (!by_query && !of_keys) begin = row - 59;
            const bool changes = (i == 0 && *where != 'd') || (i == 1) || (i == 2) || (i == 3 && *where != 'v');
            const std::string label = cat(level.name, " ", type, " ", poison, " in ", where, ", result ", i);
            const auto unchanged = [&](int64_t from, int64_t count) {
              return same(got[i].narrow(2, from, count), clean[i].narrow(2, from, count),
                          level.pairs && type == at::kBFloat16);
            };
            EXPECT_TRUE(unchanged(0, begin) && unchanged(end, tokens - end)) << label;
            if (changes) {
              EXPECT_FALSE(at::isfinite(got[i].narrow(2, begin, end - begin)).any().item<bool>()) << label;
            } else {
              EXPECT_TRUE(unchanged(begin, end - begin)) << label;
            }
          }
        }
}

// Padding of an odd length: the last key that is seen has a neighbour that is not.
TEST(FlashKernel, DoesNotReadOverTheEndOfWhatIsSeen) {
  const int64_t tokens = 40, dim = 16;
  const Band band({.padding = 9}, tokens, tokens);
  const Pieces pieces{{0, tokens}};
  for (const Tried& level : tried())
    for (at::ScalarType type : {at::kFloat, at::kBFloat16}) {
      at::manual_seed(3);
      const auto draw = [&] { return at::randn({1, 1, tokens, dim}).to(type); };
      const at::Tensor q = draw(), k = draw(), v = draw();
      const auto attend = [&] {
        Running running{at::zeros({1, 1, tokens, dim}), at::full({1, 1, tokens}, -kInfinity)};
        level.kernel->attend({q, k, v, pieces, pieces, &band, 0.25}, running);
        return running.out;
      };
      const at::Tensor clean = attend();
      for (const at::Tensor& hit : {k, v}) hit.narrow(2, tokens - 9, 9).fill_(std::nan(""));
      EXPECT_TRUE(same(attend(), clean, level.pairs && type == at::kBFloat16)) << level.name << " " << type;
    }
}

// A key that is minus infinity to all rows gets no weight, also in a tile that has fewer rows than lanes.
TEST(FlashKernel, GivesAnInfiniteKeyNoGradientOfRowsThatAreNotThere) {
  const Band band({}, 5, 5);
  const Pieces pieces{{0, 5}};
  for (const Tried& level : tried())
    for (at::ScalarType type : {at::kFloat, at::kBFloat16}) {
      at::manual_seed(3);
      const at::Tensor q = at::rand({1, 1, 5, 16}).add(0.1).to(type), v = at::randn({1, 1, 5, 16}).to(type),
                       k = at::randn({1, 1, 5, 16}).to(type);
      k.select(2, 2).fill_(-kInfinity);
      const AttendInput input{q, k, v, pieces, pieces, &band, 0.25};
      Running running{at::zeros({1, 1, 5, 16}), at::full({1, 1, 5}, -kInfinity)};
      level.kernel->attend(input, running);
      EXPECT_TRUE(at::isfinite(running.out).all().item<bool>()) << level.name << " " << type;
      Gradients g{at::zeros(q.sizes()), at::zeros(q.sizes()), at::zeros(q.sizes())};
      level.kernel->attend_backward({input, v, running.lse, (v.to(at::kFloat) * running.out).sum(-1)}, g);
      EXPECT_TRUE(g.dk.select(2, 2).eq(0).all().item<bool>()) << level.name << " " << type;
      EXPECT_TRUE(g.dv.select(2, 2).eq(0).all().item<bool>()) << level.name << " " << type;
    }
}

TEST(FlashKernel, HasNoBitsOfThreads) {
  const Case c{.mask = {.causal = true}, .tokens = 3000, .heads = 2, .key_heads = 1, .dim = 32, .batch = 1};
  const int threads = at::get_num_threads();
  for (const Tried& level : tried()) {
    std::vector<Results> results;
    for (int count : {1, 2, 3, 3}) {
      at::set_num_threads(count);
      results.push_back(run(*level.kernel, c, at::kFloat, at::kFloat));
    }
    for (const Results& other : results) {
      EXPECT_TRUE(at::equal(results[0].out, other.out) && at::equal(results[0].lse, other.lse)) << level.name;
      EXPECT_TRUE(at::equal(results[0].dq, other.dq) && at::equal(results[0].dk, other.dk)) << level.name;
      EXPECT_TRUE(at::equal(results[0].dv, other.dv)) << level.name;
    }
  }
  at::set_num_threads(threads);
}

// At every 997th float there is between -87 and 0.
TEST(FlashKernel, ExponentiatesToOneInTenMillion) {
  using Plain = cpu::Vectors<PairsTwin>;
  double worst = 0;
  uint32_t bits = std::bit_cast<uint32_t>(-0x1p-30f);
  for (const uint32_t end = std::bit_cast<uint32_t>(-87.f); bits < end;) {
    float values[Plain::kWidth], powers[Plain::kWidth];
    for (float& value : values) {
      value = std::bit_cast<float>(bits);
      bits += 997;
    }
    Plain::store(powers, Plain::exp(Plain::load(values)));
    for (int i = 0; i < Plain::kWidth && values[i] > -87; ++i) {
      const double truth = std::exp(static_cast<double>(values[i]));
      worst = std::max(worst, std::abs(powers[i] - truth) / truth);
    }
  }
  EXPECT_LT(worst, 1e-7);
  float special[Plain::kWidth] = {0, -200, -std::numeric_limits<float>::infinity(), std::nanf("")},
        powers[Plain::kWidth];
  Plain::store(powers, Plain::exp(Plain::load(special)));
  EXPECT_EQ(powers[0], 1);
  EXPECT_EQ(powers[1], 0);
  EXPECT_EQ(powers[2], 0);
  EXPECT_TRUE(std::isnan(powers[3]));
}

TEST(FlashKernel, EndsWithTheErrorOfItsCaller) {
  const at::Tensor t = at::randn({1, 2, 3000, 16});
  const Band band({}, 3000, 3000);
  std::atomic<int> calls = 0;
  const AttendInput input{t, t, t, {{0, 3000}}, {{0, 3000}}, &band, 1, [&] {
                            if (++calls == 4) throw ClusterError("rank 3 left");
                          }};
  Running running{at::zeros({1, 2, 3000, 16}), at::full({1, 2, 3000}, -kInfinity)};
  EXPECT_THROW(cpu::flash_kernel().attend(input, running), ClusterError);
  calls = 0;
  Gradients gradients{at::zeros(t.sizes()), at::zeros(t.sizes()), at::zeros(t.sizes())};
  EXPECT_THROW(cpu::flash_kernel().attend_backward({input, t, running.lse, running.lse}, gradients), ClusterError);
}

// Norms of errors against float64, beside those of PyTorch's own kernel on the same inputs.
TEST(FlashKernel, IsAsExactAsPyTorch) {
  const int64_t tokens = 1500, dim = 64;
  const Pieces pieces{{0, tokens}};
  for (at::ScalarType type : {at::kFloat, at::kBFloat16})
    for (bool causal : {false, true}) {
      at::manual_seed(5);
      const auto draw = [&] { return at::randn({1, 2, tokens, dim}).to(type); };
      const at::Tensor q = draw(), k = draw(), v = draw(), dout = draw();
      const Band band({.causal = causal}, tokens, tokens);
      const auto run = [&](const Kernel& kernel, at::ScalarType wide) {
        const auto in = [&](const at::Tensor& t) { return wide == at::kDouble ? t.to(wide) : t; };
        const AttendInput input{in(q), in(k), in(v), pieces, pieces, &band, 0.125};
        Running running{at::zeros(q.sizes(), wide), at::full({1, 2, tokens}, -kInfinity, wide)};
        kernel.attend(input, running);
        Gradients g{at::zeros(q.sizes(), wide), at::zeros(q.sizes(), wide), at::zeros(q.sizes(), wide)};
        kernel.attend_backward({input, in(dout), running.lse, (dout.to(wide) * running.out).sum(-1)}, g);
        return std::vector<at::Tensor>{running.out, g.dq, g.dk, g.dv};
      };
      const std::vector<at::Tensor> truth = run(reference_kernel(), at::kDouble);
      const auto [out, lse] = at::_scaled_dot_product_flash_attention_for_cpu(q, k, v, 0, causal, {}, 0.125);
      const auto [dq, dk, dv] =
          at::_scaled_dot_product_flash_attention_for_cpu_backward(dout, q, k, v, out, lse, 0, causal, {}, 0.125);
      const std::vector<at::Tensor> theirs{out, dq, dk, dv};
      for (const Tried& level : tried()) {
        const std::vector<at::Tensor> ours = run(*level.kernel, at::kFloat);
        for (size_t i = 0; i < ours.size(); ++i) {
          const auto error = [&](const at::Tensor& t) {
            return ((t.to(at::kDouble) - truth[i]).norm() / truth[i].norm()).item<double>();
          };
          const std::string label = cat(level.name, " ", type, causal ? " causal" : " full", ", result ", i);
          if (type == at::kFloat) {
            EXPECT_LE(error(ours[i]), std::min(3e-6, 3 * error(theirs[i]))) << label;
          } else {
            EXPECT_LE(error(ours[i]), error(theirs[i])) << label;
          }
        }
      }
    }
}

// Sums over very many keys must not gather rounding errors.
TEST(FlashKernel, StaysExactOverManyKeys) {
  const int64_t rows = 16, keys = 32768, dim = 32;
  const Band band({}, rows, keys);
  at::manual_seed(5);
  const at::Tensor q = at::randn({1, 1, rows, dim}), dout = at::randn({1, 1, rows, dim}),
                   k = at::randn({1, 1, keys, dim}), v = at::randn({1, 1, keys, dim});
  const auto run = [&](const Kernel& kernel, at::ScalarType type) {
    const AttendInput input{q.to(type), k.to(type), v.to(type), {{0, rows}}, {{0, keys}}, &band, 0.125};
    Running running{at::zeros(q.sizes(), type), at::full({1, 1, rows}, -kInfinity, type)};
    kernel.attend(input, running);
    Gradients g{at::zeros(q.sizes(), type), at::zeros(k.sizes(), type), at::zeros(k.sizes(), type)};
    kernel.attend_backward({input, dout.to(type), running.lse, (dout.to(type) * running.out).sum(-1)}, g);
    return std::vector<at::Tensor>{running.out, g.dq, g.dk, g.dv};
  };
  const std::vector<at::Tensor> truth = run(reference_kernel(), at::kDouble);
  for (const Tried& level : tried()) {
    const std::vector<at::Tensor> got = run(*level.kernel, at::kFloat);
    for (size_t i = 0; i < got.size(); ++i)
      EXPECT_LT(((got[i].to(at::kDouble) - truth[i]).norm() / truth[i].norm()).item<double>(), 3e-6)
          << level.name << ", result " << i;
  }
}

TEST(FlashKernel, RefusesInputsOfDifferentTypes) {
  const at::Tensor wide = at::randn({1, 1, 4, 8}), narrow = wide.to(at::kBFloat16);
  const Band band({}, 4, 4);
  const Pieces all{{0, 4}};
  Running running{at::zeros(wide.sizes()), at::full({1, 1, 4}, -kInfinity)};
  Gradients g{at::zeros(wide.sizes()), at::zeros(wide.sizes()), at::zeros(wide.sizes())};
  EXPECT_THROW(cpu::flash_kernel().attend({wide, narrow, wide, all, all, &band, 1}, running), InternalError);
  EXPECT_THROW(cpu::flash_kernel().attend({wide, wide, narrow, all, all, &band, 1}, running), InternalError);
  EXPECT_THROW(cpu::flash_kernel().attend_backward(
                   {{wide, wide, wide, all, all, &band, 1}, narrow, running.lse, running.lse}, g),
               InternalError);
}

TEST(FlashKernel, RefusesALevelThatIsNotThere) {
  try {
    cpu::level("sse9");
    FAIL();
  } catch (const UserError& error) {
    EXPECT_EQ(std::string(error.what()),
              cat("STARTRAIL_ISA=sse9 is not a level of this processor; valid levels: ", join(cpu::level_names())));
  }
}

TEST(FlashKernel, MatchesTheReferenceOnRandomShapes) { fuzz_flash(tried(), 1, 100); }

}  // namespace
}  // namespace startrail

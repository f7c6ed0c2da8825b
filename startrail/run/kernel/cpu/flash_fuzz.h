// The levels to test, and random shapes, masks, strides and threads on one of them against the reference in float64.
#pragma once

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <algorithm>
#include <array>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "startrail/run/kernel/cpu/cpu.h"
#include "startrail/run/kernel/cpu/flash.h"
#include "startrail/run/kernel/kernel_testing.h"

namespace startrail {

namespace {  // as flash.h

// The levels that multiply bfloat16 pairs need a processor that can; this is the same code on one that can't.
struct PairsTwin : cpu::PlainPairs<4> {
  static constexpr int kWidth = 4, kRows = 8;
  static constexpr bool kPairs = true;
};

struct Tried {
  std::string name;
  std::unique_ptr<Kernel> kernel;
  bool pairs;  // bfloat16 weights are rounded
};

std::vector<Tried> tried() {
  std::vector<Tried> all;
  for (const std::string& level : cpu::level_names())
    all.push_back({level, cpu::make_flash_kernel(cpu::level(level)), level == "avx512bf16"});
  all.push_back({"pairs", cpu::make_flash_kernel(*cpu::Flash<PairsTwin>::level("pairs")), true});
  return all;
}

}  // namespace

// The same numbers, [batch, heads, tokens, dim], as a caller may have them: heads before tokens or after, rows further
// apart than they are long, planes of a larger block.
inline at::Tensor strided(std::mt19937& random, const at::Tensor& t) {
  const int64_t batch = t.size(0), heads = t.size(1), tokens = t.size(2), dim = t.size(3);
  const int64_t gap = static_cast<int64_t>(random() % 3) * 5;
  at::Tensor made;
  switch (random() % 3) {
    case 0:
      made = at::empty({batch, heads, tokens, dim + gap}, t.options());
      break;
    case 1:
      made = at::empty({batch, tokens, heads, dim + gap}, t.options()).transpose(1, 2);
      break;
    default:
      made = at::empty({tokens, 2, batch, heads, dim + gap}, t.options()).select(1, 1).permute({1, 2, 0, 3});
  }
  return made.narrow(3, gap / 5, dim).copy_(t);
}

inline Mask random_mask(std::mt19937& random, int64_t tokens) {
  const auto below = [&](int64_t n) { return static_cast<int64_t>(random() % static_cast<uint64_t>(n)); };
  Mask mask{.causal = random() % 2 == 0};
  if (random() % 3 == 0) mask.window = 1 + below(tokens);
  if (random() % 4 == 0) mask.padding = below(tokens / 2 + 1);
  if (mask.causal && mask.window == 0 && random() % 4 == 0) mask.prefix = 1 + below(tokens);
  if (mask.prefix == 0 && random() % 3 == 0)
    for (int64_t left = tokens - mask.padding; left > 0; left -= mask.documents.back())
      mask.documents.push_back(1 + below(left));
  return mask;
}

// Each case on all of `levels`, against one answer of the reference.
inline void fuzz_flash(const std::vector<Tried>& levels, unsigned seed, int cases) {
  std::mt19937 random(seed);
  const int threads = at::get_num_threads();
  for (int i = 0; i < cases; ++i) {
    const auto below = [&](int64_t n) { return static_cast<int64_t>(random() % static_cast<uint64_t>(n)); };
    at::manual_seed(random());
    const int64_t tokens = 1 + below(random() % 8 == 0 ? 1500 : 200), batch = 1 + below(2), key_heads = 1 + below(3),
                  heads = key_heads * (1 + below(3)),
                  dim = random() % 2                    ? 8 * (1 + below(32))
                        : random() % 40 || tokens > 200 ? 1 + below(100)
                                                        : 257 + below(768);
    // A scale below 0 is left to the reference.
    const double gain = std::array{1., 1., 1., 0.1, 2., -1.}[random() % 6];
    const double scale = gain / std::sqrt(static_cast<double>(dim));
    const at::ScalarType type = random() % 2 ? at::kFloat : at::kBFloat16;
    const Mask mask = random_mask(random, tokens);
    const Layout layout{static_cast<Order>(random() % 3), tokens, static_cast<int>(1 + below(4))};
    const auto chunks = [&] {  // at least one
      std::vector<int> chosen{static_cast<int>(below(layout.chunks))};
      for (int c = 0; c < layout.chunks; ++c)
        if (c != chosen[0] && random() % 2) chosen.push_back(c);
      return chosen;
    };
    const std::vector<int> query_chunks = chunks(), key_chunks = chunks();
    const Pieces queries = chunk_pieces(layout, query_chunks), keys = chunk_pieces(layout, key_chunks);
    const int64_t rows = chunk_tokens(layout, query_chunks), columns = chunk_tokens(layout, key_chunks);
    const std::string label =
        cat("seed ", seed, ", case ", i, ": ", type, ", ", to_text(mask), ", ", to_text(layout.order), ", ", tokens,
            " tokens, ", rows, " x ", columns, ", heads ", heads, "/", key_heads, ", dim ", dim, ", scale ", scale);
    const Band band(mask, tokens, tokens);
    const auto draw = [&](int64_t h, int64_t n) { return strided(random, at::randn({batch, h, n, dim}).to(type)); };
    const at::Tensor q = draw(heads, rows), k = draw(key_heads, columns), v = draw(key_heads, columns),
                     dout = draw(heads, rows);
    // What is there already: a part of the attention, or nothing.
    at::Tensor out = at::randn({batch, heads, rows, dim}), lse = at::randn({batch, heads, rows});
    const at::Tensor blind = at::rand({batch, heads, rows}) < (random() % 2 ? 0.3 : 1.1);
    lse.masked_fill_(blind, -kInfinity);
    out.masked_fill_(blind.unsqueeze(-1), 0);
    const auto run = [&](const Kernel& on, at::ScalarType wide, int on_threads) {
      at::set_num_threads(on_threads);
      const auto in = [&](const at::Tensor& t) { return wide == at::kDouble ? t.to(wide) : t; };
      const AttendInput input{in(q), in(k), in(v), queries, keys, &band, scale};
      Running running{strided(random, out.to(wide)), lse.to(wide, false, true)};
      on.attend(input, running);
      const auto ones = [&](const at::Tensor& t) { return strided(random, at::ones(t.sizes(), wide)); };
      Gradients g{ones(q), ones(k), ones(k)};
      const at::Tensor delta = (dout.to(wide) * running.out).sum(-1);
      on.attend_backward({input, in(dout), running.lse, delta}, g);
      return Results{running.out, running.lse, g.dq, g.dk, g.dv};
    };
    const Results truth = run(reference_kernel(), at::kDouble, threads);
    std::optional<Results> plain;
    // The errors of float32 grow with the scores: three times those of the reference in it, each its own.
    if (gain > 1) plain = run(reference_kernel(), at::kFloat, threads);
    for (const Tried& level : levels) {
      Bounds bounds{level.pairs && type == at::kBFloat16 ? 1.5e-2 : 5e-6};
      if (plain) bounds.widen(*plain, truth, 3);
      const Results got = run(*level.kernel, at::kFloat, static_cast<int>(1 + below(3)));
      expect_close(got, truth, bounds, cat(level.name, ", ", label));
    }
  }
  at::set_num_threads(threads);
}

}  // namespace startrail

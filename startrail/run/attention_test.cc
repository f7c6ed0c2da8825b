#include "startrail/run/attention.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "startrail/run/comm/ranks.h"

namespace startrail {
namespace {

at::Tensor tokens_of(const Layout& layout, int rank) {
  std::vector<int64_t> tokens;
  for (const Piece& piece : chunk_pieces(layout, rank))
    for (int64_t i = 0; i < piece.count; ++i) tokens.push_back(piece.at(i));
  return at::tensor(tokens, at::kLong);
}

TEST(Attention, Try) {
  const int P = 16;
  at::manual_seed(1);
  const int64_t N = 133, D = 8;
  for (const Grid& grid : every_grid(P)) {
    const int H = 16, G = grid.heads % 4 == 0 ? 4 : 16;
    auto q = at::randn({2, H, N, D}, at::kDouble), k = at::randn({2, G, N, D}, at::kDouble),
         v = at::randn({2, G, N, D}, at::kDouble), g = at::randn({2, H, N, D}, at::kDouble);
    AttentionOptions options;
    options.grid = grid;
    options.tokens = N;
    options.layout = Order::zigzag;
    options.mask.causal = true;
    const Band band(options.mask, N, N);
    AttendInput in{q, k, v, {{0, N, 1}}, {{0, N, 1}}, &band, 1 / std::sqrt(8.0)};
    Running r{at::zeros_like(q), at::full({2, H, N}, -INFINITY, at::kDouble)};
    reference_kernel().attend(in, r);
    Gradients gr{at::zeros_like(q), at::zeros_like(k), at::zeros_like(v)};
    reference_kernel().attend_backward({in, g, r.lse, (g * r.out).sum(-1)}, gr);
    for (auto dir : {Direction::keys, Direction::queries}) {
      options.backward = dir;
      auto out = at::zeros_like(q), dq = at::zeros_like(q), dk = at::zeros_like(k), dv = at::zeros_like(v);
      run_ranks(P, 2, [&](const std::shared_ptr<Group>& group) {
        auto idx = tokens_of({options.layout, N, P}, group->rank());
        auto lq = q.index_select(2, idx).requires_grad_(), lk = k.index_select(2, idx).requires_grad_(),
             lv = v.index_select(2, idx).requires_grad_();
        auto o = attention(lq, lk, lv, options, group);
        o.backward(g.index_select(2, idx));
        at::NoGradGuard ng;
        out.index_copy_(2, idx, o.detach());
        dq.index_copy_(2, idx, lq.grad());
        dk.index_copy_(2, idx, lk.grad());
        dv.index_copy_(2, idx, lv.grad());
      });
      EXPECT_LT((out - r.out).abs().max().item<double>(), 1e-12) << to_text(grid);
      EXPECT_LT((dq - gr.dq).abs().max().item<double>(), 1e-12) << to_text(grid);
      EXPECT_LT((dk - gr.dk).abs().max().item<double>(), 1e-12) << to_text(grid);
      EXPECT_LT((dv - gr.dv).abs().max().item<double>(), 1e-12) << to_text(grid);
    }
  }
}

}  // namespace
}  // namespace startrail

// Exact attention over 8 ranks from your own program: each rank holds its share of one long sequence.
#include <startrail/run/attention.h>
#include <startrail/run/comm/ranks.h>

#include <ATen/ATen.h>
#include <cmath>
#include <cstdio>
#include <mutex>

int main() {
  const int ranks = 8;
  const int64_t tokens = 1000, heads = 4, dim = 32;  // tokens need not divide by the ranks

  startrail::AttentionOptions options;
  options.grid = startrail::parse_grid("startrail:2", ranks);
  options.tokens = tokens;
  options.order = startrail::Order::zigzag;
  options.mask.causal = true;

  std::mutex mutex;
  double total = 0;
  startrail::run_ranks(ranks, /*threads=*/2, [&](const std::shared_ptr<startrail::Group>& group) {
    const startrail::Layout layout{options.order, tokens, ranks};
    const int64_t own = startrail::chunk_tokens(layout, group->rank());
    const auto draw = [&] { return at::randn({1, heads, own, dim}).requires_grad_(); };
    const at::Tensor q = draw(), k = draw(), v = at::ones({1, heads, own, dim}).requires_grad_();

    const at::Tensor out = startrail::attention(q, k, v, options, group);
    out.sum().backward();

    const std::lock_guard lock(mutex);
    total += out.sum().item<double>() / (heads * dim) + v.grad().sum().item<double>() / (heads * dim);
  });
  // Values of 1 come out as 1, and each query hands a gradient of 1 to the keys: twice the number of tokens.
  std::printf("%.3f of %.3f\n", total, 2.0 * tokens);
  return std::abs(total - 2.0 * tokens) < 0.01 ? 0 : 1;
}

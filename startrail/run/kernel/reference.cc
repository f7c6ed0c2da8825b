#include <ATen/ATen.h>
#include <algorithm>
#include <limits>

#include "startrail/run/kernel/kernel.h"

namespace startrail {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// How many rows to do at a time: their scores stay small enough for the allocator to reuse memory it has.
int64_t rows_at_a_time(const AttendInput& input) {
  const int64_t scores_of_a_row = input.q.size(0) * input.q.size(1) * input.k.size(2);
  return std::clamp<int64_t>(1'000'000 / scores_of_a_row, 1, 256);
}

// [queries, keys] bool: which keys the rows [begin, begin + count) see, from the mask's definition alone, not from
// tiles.
at::Tensor seen_by(const AttendInput& input, int64_t begin, int64_t count) {
  std::vector<int64_t> first, end, keys;
  int64_t row = 0;
  for (const Piece& piece : input.queries)
    for (int64_t i = 0; i < piece.count; ++i, ++row) {
      if (row < begin || row >= begin + count) continue;
      const Span span = input.band->keys_of(piece.at(i));
      first.push_back(span.begin);
      end.push_back(span.end);
    }
  for (const Piece& piece : input.keys)
    for (int64_t i = 0; i < piece.count; ++i) keys.push_back(piece.at(i));
  const auto column = [](const std::vector<int64_t>& values) { return at::tensor(values, at::kLong); };
  const at::Tensor key = column(keys).unsqueeze(0);
  return at::logical_and(key >= column(first).unsqueeze(1), key < column(end).unsqueeze(1)).to(input.q.device());
}

// [batch, key heads, group, tokens, dim] of [batch, heads, tokens, dim], so that GQA is a broadcast.
at::Tensor grouped(const at::Tensor& t, int64_t key_heads) {
  return t.unflatten(1, {key_heads, t.size(1) / key_heads});
}

// Rows [.., tokens, dim], and those that are not finite apart: 0 times infinity would be NaN where it is hidden.
struct Split {
  at::Tensor rows, finite;  // all, and all with 0 in place of the odd ones
  std::vector<int64_t> odd;

  explicit Split(const at::Tensor& all) : rows(all), finite(all) {
    const at::Tensor where = all.isfinite().all(-1).flatten(0, -2).all(0).logical_not();
    const at::Tensor at = where.nonzero().flatten().cpu();
    odd.assign(at.data_ptr<int64_t>(), at.data_ptr<int64_t>() + at.numel());
    if (!odd.empty()) finite = all.masked_fill(where.unsqueeze(-1), 0);
  }
};

// [.., n, tokens] x [.., tokens, dim], of pairs that are not hidden.
at::Tensor product(const at::Tensor& weights, const at::Tensor& hidden, const Split& split) {
  at::Tensor sum = at::matmul(weights, split.finite);
  for (int64_t token : split.odd) {
    const at::Tensor part = weights.narrow(-1, token, 1) * split.rows.narrow(-2, token, 1);
    sum += part.masked_fill(hidden.narrow(-1, token, 1), 0);
  }
  return sum;
}

class ReferenceKernel : public Kernel {
 public:
  std::string name() const override { return "reference"; }
  bool fits(at::ScalarType, at::Device, int64_t) const override { return true; }

  // Scores of the rows at hand, as tensors of numbers and of bools, and the inputs widened; about.
  int64_t scratch_bytes(const CallSize& size, int) const override {
    const int64_t all = size.batch * size.heads * size.keys;
    const int64_t scores = std::min<int64_t>(std::max<int64_t>(1'000'000, all), all * size.queries);
    return 4 * (5 * scores + 2 * size.batch * size.key_heads * size.keys * size.dim);
  }

  void attend(const AttendInput& input, Running& running) const override {
    if (input.q.size(2) == 0 || input.k.size(2) == 0) return;
    const auto type = running.out.scalar_type();
    const int64_t key_heads = input.k.size(1);
    const at::Tensor k = input.k.to(type).unsqueeze(2), v = input.v.to(type).unsqueeze(2);
    const Split values(v);
    const int64_t step = rows_at_a_time(input);
    for (int64_t row = 0; row < input.q.size(2); row += step) {
      const int64_t rows = std::min(step, input.q.size(2) - row);
      if (input.between_tiles) input.between_tiles();
      const at::Tensor hidden = seen_by(input, row, rows).logical_not();
      const at::Tensor q = grouped(input.q.narrow(2, row, rows).to(type), key_heads);
      const at::Tensor scores = (at::matmul(q, k.transpose(-1, -2)) * input.scale).masked_fill(hidden, -kInfinity);
      const at::Tensor top = scores.amax(-1, true);
      const at::Tensor shift = top.masked_fill(top == -kInfinity, 0);
      const at::Tensor weights = (scores - shift).exp();
      const at::Tensor sum = weights.sum(-1, true);
      const at::Tensor out = product(weights, hidden, values) / sum.masked_fill(sum == 0, 1);
      Running rows_of{running.out.narrow(2, row, rows), running.lse.narrow(2, row, rows)};
      merge_partial(rows_of, out.flatten(1, 2), (shift + sum.log()).squeeze(-1).flatten(1, 2));
    }
  }

  void attend_backward(const AttendBackwardInput& input, Gradients& gradients) const override {
    const AttendInput& forward = input.forward;
    if (forward.q.size(2) == 0 || forward.k.size(2) == 0) return;
    const auto type = gradients.dq.scalar_type();
    const int64_t key_heads = forward.k.size(1);
    const at::Tensor k = forward.k.to(type).unsqueeze(2), v = forward.v.to(type).unsqueeze(2);
    const Split keys(k);
    const int64_t step = rows_at_a_time(forward);
    for (int64_t row = 0; row < forward.q.size(2); row += step) {
      const int64_t rows = std::min(step, forward.q.size(2) - row);
      if (forward.between_tiles) forward.between_tiles();
      const auto rows_of = [&](const at::Tensor& t) { return grouped(t.narrow(2, row, rows).to(type), key_heads); };
      const at::Tensor q = rows_of(forward.q), dout = rows_of(input.dout);
      const at::Tensor lse = rows_of(input.lse).unsqueeze(-1), delta = rows_of(input.delta).unsqueeze(-1);
      const at::Tensor hidden = at::logical_or(seen_by(forward, row, rows).logical_not(), lse == -kInfinity);
      const at::Tensor scores = at::matmul(q, k.transpose(-1, -2)) * forward.scale;
      const at::Tensor weights = (scores - lse).exp().masked_fill(hidden, 0);
      const at::Tensor dscores =
          (weights * (at::matmul(dout, v.transpose(-1, -2)) - delta)).masked_fill(hidden, 0) * forward.scale;
      gradients.dq.narrow(2, row, rows).add_(product(dscores, hidden, keys).flatten(1, 2));
      gradients.dk.add_(product(dscores.transpose(-1, -2), hidden.transpose(-1, -2), Split(q)).sum(2));
      gradients.dv.add_(product(weights.transpose(-1, -2), hidden.transpose(-1, -2), Split(dout)).sum(2));
    }
  }
};

}  // namespace

const Kernel& reference_kernel() {
  static const ReferenceKernel kernel;
  return kernel;
}

}  // namespace startrail

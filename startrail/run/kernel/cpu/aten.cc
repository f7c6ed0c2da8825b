// ATen's CPU flash attention as a tile kernel. What it gets silently wrong is handled here and nowhere else:
//   - a row masked inside a tile comes back with lse 0 instead of -inf;
//   - its backward turns lse = -inf into NaN, and wants `out` where we have delta;
//   - no keys at all crash it (cut_tiles makes no such tile).
// bfloat16 is computed in float32: its bfloat16 tiles come back rounded, which is what makes gradients of long rings
// drift, and without AVX-512 BF16 its bfloat16 backward runs at a seventh of the float32 speed.
#include <ATen/ATen.h>
#include <algorithm>
#include <limits>

#include "startrail/run/kernel/cpu/cpu.h"

namespace startrail::cpu {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

struct TileMask {
  std::optional<at::Tensor> bias;  // [queries, keys]: 0 or -inf, for banded tiles
  at::Tensor blind;                // [queries]: rows that see nothing in this tile, when there are any
};

TileMask make_mask(const Tile& tile, const Band& band) {
  TileMask mask;
  if (tile.kind != Tile::Kind::banded) return mask;
  mask.bias = at::full({tile.query_count, tile.key_count}, -kInfinity, at::kFloat);
  at::Tensor blind = at::zeros({tile.query_count}, at::kBool);
  bool any = false;
  float* bias = mask.bias->data_ptr<float>();
  for (int64_t i = 0; i < tile.query_count; ++i) {
    const Span seen = seen_indices(band, tile.queries.at(i), tile.keys);
    std::fill(bias + i * tile.key_count + seen.begin, bias + i * tile.key_count + seen.end, 0.f);
    if (seen.begin == seen.end) blind.data_ptr<bool>()[i] = any = true;
  }
  if (any) mask.blind = blind;
  return mask;
}

class AtenKernel : public Kernel {
 public:
  std::string name() const override { return "aten"; }
  bool fits(at::ScalarType type, at::Device device, int64_t dim) const override {
    return device.is_cpu() && dim <= 256 && (type == at::kFloat || type == at::kBFloat16);
  }
  // Banded tiles need up to 4 MB more for their mask. Reached when one tile is the whole block; a block cut into
  // smaller tiles needs less.
  int64_t scratch_bytes(const CallSize& size, int threads) const override {
    const int64_t rows = size.batch * size.heads * size.queries;
    const int64_t queries = rows * size.dim, keys = size.batch * size.key_heads * size.keys * size.dim;
    // Scores that ATen has at hand in each thread: its own rule for how many rows at a time.
    const int64_t rows_at_hand = size.queries >= 768 ? 256 : size.queries >= 192 ? 64 : 32;
    const int64_t scores = rows_at_hand * std::min<int64_t>(size.keys, 512);
    int64_t values = 0;  // float32
    if (size.backward)   // `unit`, `out`, ATen's contiguous dout, dq, dk, dv and a few numbers a row
      values = 4 * queries + 2 * keys + 4 * rows + threads * 2 * scores;
    else  // out, lse and the weights by which it is merged
      values = queries + 10 * rows + threads * (scores + rows_at_hand * (size.dim + 2));
    // q, k and v; a converted dout is contiguous, and ATen makes no second copy, when it is of one sequence.
    if (size.element_bytes != sizeof(float)) values += (size.backward && size.batch > 1 ? 2 : 1) * queries + 2 * keys;
    return values * static_cast<int64_t>(sizeof(float));
  }

  void attend(const AttendInput& input, Running& running) const override {
    const at::Tensor q = input.q.to(at::kFloat), k = input.k.to(at::kFloat), v = input.v.to(at::kFloat);
    for (const Tile& tile : cut_tiles(*input.band, input.queries, input.keys)) {
      if (input.between_tiles) input.between_tiles();
      const TileMask mask = make_mask(tile, *input.band);
      const auto keys_of = [&](const at::Tensor& t) { return t.narrow(2, tile.key_begin, tile.key_count); };
      auto [out, lse] = at::_scaled_dot_product_flash_attention_for_cpu(
          q.narrow(2, tile.query_begin, tile.query_count), keys_of(k), keys_of(v), /*dropout_p=*/0,
          /*is_causal=*/tile.kind == Tile::Kind::diagonal, mask.bias, input.scale);
      if (mask.blind.defined()) lse.masked_fill_(mask.blind, -kInfinity);
      Running rows{running.out.narrow(2, tile.query_begin, tile.query_count),
                   running.lse.narrow(2, tile.query_begin, tile.query_count)};
      merge_partial(rows, out, lse);
    }
  }

  void attend_backward(const AttendBackwardInput& input, Gradients& gradients) const override {
    const AttendInput& forward = input.forward;
    const at::Tensor q = forward.q.to(at::kFloat), k = forward.k.to(at::kFloat), v = forward.v.to(at::kFloat);
    const at::Tensor dout = input.dout.to(at::kFloat);
    // ATen computes delta = rowsum(dout * out) itself; this stand-in for out gives it the delta we have. Rows are
    // scaled by their largest entry, so that squares of tiny gradients do not vanish.
    const at::Tensor largest = dout.abs().amax(-1, true);
    const at::Tensor top = largest.masked_fill(largest == 0, 1), unit = dout / top;
    const at::Tensor norm = unit.square().sum(-1, true).clamp_min_(std::numeric_limits<float>::min());
    const at::Tensor out = unit * (input.delta.unsqueeze(-1) / top / norm);
    // Any finite value serves where nothing is seen: every key of such a row is masked in every tile.
    const at::Tensor lse = input.lse.masked_fill(input.lse == -kInfinity, 0);
    for (const Tile& tile : cut_tiles(*forward.band, forward.queries, forward.keys)) {
      if (forward.between_tiles) forward.between_tiles();
      const TileMask mask = make_mask(tile, *forward.band);
      const auto rows = [&](const at::Tensor& t) { return t.narrow(2, tile.query_begin, tile.query_count); };
      const auto keys = [&](const at::Tensor& t) { return t.narrow(2, tile.key_begin, tile.key_count); };
      const auto [dq, dk, dv] = at::_scaled_dot_product_flash_attention_for_cpu_backward(
          rows(dout), rows(q), keys(k), keys(v), rows(out), rows(lse), /*dropout_p=*/0,
          /*is_causal=*/tile.kind == Tile::Kind::diagonal, mask.bias, forward.scale);
      rows(gradients.dq).add_(dq);
      keys(gradients.dk).add_(dk);
      keys(gradients.dv).add_(dv);
    }
  }
};

}  // namespace

const Kernel& aten_kernel() {
  static const AtenKernel kernel;
  return kernel;
}

}  // namespace startrail::cpu

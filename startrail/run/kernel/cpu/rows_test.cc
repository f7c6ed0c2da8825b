// Each level's work on rows against plain code.
#include "startrail/run/kernel/cpu/row_work.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <limits>

#include "startrail/base/text.h"
#include "startrail/run/kernel/cpu/cpu.h"

namespace startrail {
namespace {

struct Case {
  const cpu::RowWork& work;
  at::ScalarType type;
  int64_t dim;
  std::string name;
  bool bfloat16() const { return type == at::kBFloat16; }
  at::Tensor draw(at::IntArrayRef shape) const { return at::randn(shape).to(type); }
  void expect_same(const at::Tensor& got, const at::Tensor& exact, const char* what) const {
    const double limit = got.scalar_type() == at::kBFloat16 ? 5e-3 : 1e-6;
    EXPECT_LE((got.to(at::kDouble) - exact).norm().item<double>(), limit * exact.norm().item<double>())
        << name << ": " << what;
  }
};

constexpr int64_t kRows = 7, kBegin = 2, kEnd = 6;

template <typename Check>
void on_every_level(const Check& check) {
  at::manual_seed(1);
  for (const std::string& level : cpu::level_names())
    for (at::ScalarType type : {at::kFloat, at::kBFloat16})
      for (int64_t dim : {2, 6, 8, 16, 26, 64, 100})
        check(Case{cpu::level(level).rows, type, dim, cat(level, " ", type, " dim ", dim)});
}

// Rows outside [kBegin, kEnd) are not written.
void expect_untouched(const at::Tensor& t) {
  EXPECT_TRUE((t.narrow(0, 0, kBegin) == 3).all().item<bool>());
  EXPECT_TRUE((t.narrow(0, kEnd, kRows - kEnd) == 3).all().item<bool>());
}
at::Tensor taken(const at::Tensor& t) { return t.narrow(0, kBegin, kEnd - kBegin).to(at::kDouble); }

TEST(Rows, NormalisesAndDifferentiates) {
  on_every_level([](const Case& c) {
    const at::Tensor x = c.draw({kRows, c.dim}), weight = c.draw({c.dim}), dy = c.draw({kRows, c.dim});
    at::Tensor y = at::full_like(x, 3), dx = at::full_like(x, 3), inverse = at::full({kRows}, 3.0, at::kFloat);
    at::Tensor dweight = at::ones({c.dim}, at::kFloat);
    const cpu::NormRows work{c.bfloat16(), c.dim, x.data_ptr(), weight.data_ptr(), inverse.data_ptr<float>()};
    c.work.rms_norm(work, 0.1f, y.data_ptr(), kBegin, kEnd);
    c.work.rms_norm_backward(work, dy.data_ptr(), dx.data_ptr(), dweight.data_ptr<float>(), kBegin, kEnd);
    const at::Tensor wide = taken(x), gain = weight.to(at::kDouble),
                     scale = at::rsqrt(wide.square().mean(1, true) + 0.1);
    const at::Tensor unit = wide * scale, dunit = taken(dy) * gain;
    c.expect_same(taken(inverse), scale.squeeze(1), "inverse");
    c.expect_same(y.narrow(0, kBegin, kEnd - kBegin), unit * gain, "y");
    c.expect_same(dx.narrow(0, kBegin, kEnd - kBegin), (dunit - unit * (dunit * unit).mean(1, true)) * scale, "dx");
    c.expect_same(dweight, (taken(dy) * unit).sum(0) + 1, "dweight");
    for (const at::Tensor& t : {y, dx, inverse}) expect_untouched(t);
  });
}

TEST(Rows, RotatesStridedHeads) {
  on_every_level([](const Case& c) {
    const at::Tensor x = c.draw({3, kRows, c.dim + 5}), angles = at::randn({kRows, c.dim / 2});
    const at::Tensor cos = angles.cos(), sin = angles.sin();
    for (float sign : {1.f, -1.f}) {
      at::Tensor y = at::full({kRows, 3, c.dim}, 3, c.type);
      const cpu::RotateRows work{
          c.bfloat16(),          3,   c.dim, x.data_ptr(), x.stride(1), x.stride(0), cos.data_ptr<float>(),
          sin.data_ptr<float>(), sign};
      c.work.rotate(work, y.data_ptr(), kBegin, kEnd);
      const auto halves = taken(x.narrow(2, 0, c.dim).transpose(0, 1)).chunk(2, 2);
      const at::Tensor a = taken(cos).unsqueeze(1), b = taken(sin).unsqueeze(1) * sign;
      c.expect_same(y.narrow(0, kBegin, kEnd - kBegin),
                    at::cat({halves[0] * a - halves[1] * b, halves[1] * a + halves[0] * b}, 2), "y");
      expect_untouched(y);
    }
  });
}

TEST(Rows, GatesAndDifferentiates) {
  on_every_level([](const Case& c) {
    const at::Tensor gate = c.draw({kRows, c.dim}) * 4, up = c.draw({kRows, c.dim}), dy = c.draw({kRows, c.dim});
    at::Tensor y = at::full_like(gate, 3), dgate = at::full_like(gate, 3), dup = at::full_like(gate, 3);
    const cpu::GatedRow work{c.bfloat16(), gate.data_ptr(), up.data_ptr()};
    c.work.swiglu(work, y.data_ptr(), kBegin * c.dim, kEnd * c.dim);
    c.work.swiglu_backward(work, dy.data_ptr(), dgate.data_ptr(), dup.data_ptr(), kBegin * c.dim, kEnd * c.dim);
    const at::Tensor g = taken(gate), s = g.sigmoid();
    c.expect_same(y.narrow(0, kBegin, kEnd - kBegin), g * s * taken(up), "y");
    c.expect_same(dup.narrow(0, kBegin, kEnd - kBegin), taken(dy) * g * s, "dup");
    c.expect_same(dgate.narrow(0, kBegin, kEnd - kBegin), taken(dy) * taken(up) * s * (1 + g * (1 - s)), "dgate");
    for (const at::Tensor& t : {y, dgate, dup}) expect_untouched(t);
  });
}

TEST(Rows, RoundsToBfloat16AsATenDoes) {
  at::manual_seed(2);
  const float infinity = std::numeric_limits<float>::infinity();
  const at::Tensor up = at::cat({at::randn({1000}), at::tensor({infinity, -infinity, infinity - infinity, 3.3e38f})}),
                   gate = at::full({up.size(0)}, 97);  // so that silu(gate) is gate
  const at::Tensor narrow_up = up.to(at::kBFloat16), narrow_gate = gate.to(at::kBFloat16);
  const at::Tensor expected = (gate * narrow_up.to(at::kFloat)).to(at::kBFloat16);
  for (const std::string& level : cpu::level_names()) {
    at::Tensor y = at::zeros_like(expected);
    cpu::level(level).rows.swiglu({true, narrow_gate.data_ptr(), narrow_up.data_ptr()}, y.data_ptr(), 0, y.numel());
    EXPECT_TRUE(at::allclose(y, expected, 0, 0, /*equal_nan=*/true)) << level;
  }
}

}  // namespace
}  // namespace startrail

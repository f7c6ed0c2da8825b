// What the kernels' tests share: a case, both passes of it on any kernel, and the comparison with the reference.
#pragma once

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "startrail/base/text.h"
#include "startrail/run/kernel/kernel.h"

namespace startrail {

inline constexpr double kInfinity = std::numeric_limits<double>::infinity();

struct Case {
  Mask mask;
  Order order = Order::zigzag;
  int64_t tokens = 100, heads = 4, key_heads = 2, dim = 16, batch = 2;
  double gain = 1;  // of q: > 1 makes scores large
  double dout_gain = 1;
};

struct Results {
  at::Tensor out, lse, dq, dk, dv;
};

// Attends query chunks {1, 2} of 4 to all key chunks, one block of two after the other, so that merging is part of it.
inline Results run(const Kernel& kernel, const Case& c, at::ScalarType type, at::ScalarType accumulator) {
  at::manual_seed(7);
  const Layout layout{c.order, c.tokens, 4};
  const std::vector<int> query_chunks{1, 2};
  const int64_t queries = chunk_tokens(layout, query_chunks);
  const Band band(c.mask, c.tokens, c.tokens);
  const double scale = 1 / std::sqrt(static_cast<double>(c.dim));
  const auto draw = [&](int64_t heads, int64_t tokens, double gain) {
    return (at::randn({c.batch, heads, tokens, c.dim}) * gain).to(at::kBFloat16).to(type);
  };
  const at::Tensor q = draw(c.heads, queries, c.gain), dout = draw(c.heads, queries, c.dout_gain);
  std::vector<AttendInput> inputs;
  for (const std::vector<int>& keys : {std::vector<int>{0, 3}, std::vector<int>{2, 1}}) {
    const int64_t count = chunk_tokens(layout, keys);
    inputs.push_back({q, draw(c.key_heads, count, 1), draw(c.key_heads, count, 1), chunk_pieces(layout, query_chunks),
                      chunk_pieces(layout, keys), &band, scale});
  }
  const auto wide = at::TensorOptions(accumulator);
  Results results;
  results.out = at::zeros({c.batch, c.heads, queries, c.dim}, wide);
  results.lse = at::full({c.batch, c.heads, queries}, -kInfinity, wide);
  Running running{results.out, results.lse};
  for (const AttendInput& input : inputs) kernel.attend(input, running);
  const at::Tensor delta = (dout.to(accumulator) * results.out).sum(-1);
  results.dq = at::zeros(q.sizes(), wide);
  std::vector<at::Tensor> dk, dv;
  for (const AttendInput& input : inputs) {
    dk.push_back(at::zeros(input.k.sizes(), wide));
    dv.push_back(at::zeros(input.v.sizes(), wide));
    Gradients gradients{results.dq, dk.back(), dv.back()};
    kernel.attend_backward({input, dout, results.lse, delta}, gradients);
  }
  results.dk = at::cat(dk, 2);
  results.dv = at::cat(dv, 2);
  return results;
}

// The largest error, of the largest number.
inline double error_of(const at::Tensor& got, const at::Tensor& truth) {
  if (truth.numel() == 0) return 0;  // a rank may hold no tokens
  const double size = std::max(1e-30, truth.abs().max().item<double>());
  return (got.to(at::kDouble) - truth).abs().max().item<double>() / size;
}

inline void expect_close(const at::Tensor& got, const at::Tensor& truth, double tolerance, const std::string& what) {
  ASSERT_EQ(got.sizes(), truth.sizes()) << what;
  EXPECT_LE(error_of(got, truth), tolerance) << what;
}

// A result's rows that see nothing, where lse is -inf, as 0.
inline at::Tensor finite_lse(const at::Tensor& lse) { return lse.masked_fill(lse == -kInfinity, 0); }

// The largest error allowed in each result.
struct Bounds {
  double out, lse, dq, dk, dv;
  explicit Bounds(double all) : out(all), lse(all), dq(all), dk(all), dv(all) {}
  // To `factor` times the error that `other` has, where that is more.
  void widen(const Results& other, const Results& truth, double factor) {
    out = std::max(out, factor * error_of(other.out, truth.out));
    lse = std::max(lse, factor * error_of(finite_lse(other.lse), finite_lse(truth.lse)));
    dq = std::max(dq, factor * error_of(other.dq, truth.dq));
    dk = std::max(dk, factor * error_of(other.dk, truth.dk));
    dv = std::max(dv, factor * error_of(other.dv, truth.dv));
  }
};

inline void expect_close(const Results& got, const Results& truth, const Bounds& bounds, const std::string& label) {
  expect_close(got.out, truth.out, bounds.out, label + ", out");
  EXPECT_TRUE(at::equal(got.lse == -kInfinity, truth.lse == -kInfinity)) << label;
  expect_close(finite_lse(got.lse), finite_lse(truth.lse), bounds.lse, label + ", lse");
  expect_close(got.dq, truth.dq, bounds.dq, label + ", dq");
  expect_close(got.dk, truth.dk, bounds.dk, label + ", dk");
  expect_close(got.dv, truth.dv, bounds.dv, label + ", dv");
}
inline void expect_close(const Results& got, const Results& truth, double tolerance, const std::string& label) {
  expect_close(got, truth, Bounds(tolerance), label);
}

// The reference's answer in float64, computed once for all kernels, levels and types: it is most of the work.
inline const Results& truth_of(const Case& c) {
  static std::map<std::string, Results> known;
  const std::string name = cat(to_text(c.mask), " ", to_text(c.order), " ", c.tokens, " ", c.heads, " ", c.key_heads,
                               " ", c.dim, " ", c.batch, " ", c.gain, " ", c.dout_gain);
  const auto found = known.find(name);
  return found != known.end() ? found->second : known[name] = run(reference_kernel(), c, at::kDouble, at::kDouble);
}

inline void compare(const Kernel& kernel, const Case& c, at::ScalarType type, double tolerance,
                    const std::string& what) {
  expect_close(run(kernel, c, type, at::kFloat), truth_of(c), tolerance,
               cat(what, ", ", to_text(c.mask), ", ", to_text(c.order), ", tokens ", c.tokens));
}

inline std::vector<Mask> masks_of(int64_t tokens) {
  const int64_t third = tokens / 3;
  return {{},
          {.causal = true},
          {.window = 9},
          {.causal = true, .window = 5},
          {.documents = {third, 1, tokens - third - 1}},
          {.causal = true, .documents = {third, 1, tokens - third - 1}},
          {.causal = true, .prefix = third},
          {.causal = true, .padding = third},
          {.causal = true, .window = 7, .documents = {third, tokens - third - 4}, .padding = 4}};
}

}  // namespace startrail

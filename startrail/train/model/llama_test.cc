#include "startrail/train/model/llama.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include "startrail/run/comm/ranks.h"
#include "startrail/train/model/parameters.h"

namespace startrail {
namespace {

const LlamaConfig kShape{.vocabulary = 40,
                         .dim = 16,
                         .layers = 2,
                         .heads = 4,
                         .key_heads = 2,
                         .head_dim = 4,
                         .hidden = 24,
                         .kind = "qwen3",
                         .window = 9,
                         .windowed = {true, false}};

struct Outcome {
  double loss = 0;       // the sum over all tokens
  at::Tensor gradients;  // its own, of the whole row
};

// Of the tokens [begin, end) of the row as one sequence, with these documents, over ranks.
Outcome run(const LlamaConfig& shape, const at::Tensor& row, const std::vector<int64_t>& documents, int ranks) {
  Outcome outcome;
  run_ranks(ranks, 2, [&](const std::shared_ptr<Group>& group) {
    Llama model(shape);
    ParameterRow parameters(model, at::kFloat);
    parameters.weights().copy_(initial_values(model, 3, {0, parameters.size()}) * 3);
    AttentionOptions options;
    options.grid = parse_grid(ranks == 1 ? "ring" : "startrail:2", ranks);
    options.order = Order::zigzag;
    const int64_t tokens = row.size(0) - 1;
    const at::Tensor places = places_of({options.order, tokens, ranks}, group->rank());
    const Example example{
        tokens, {.causal = true, .documents = documents}, row.index_select(0, places), row.index_select(0, places + 1)};
    const Loss loss = model.loss(example, make_sequence(example, options, group, /*recompute=*/true));
    torch::autograd::backward({loss.sum});
    at::Tensor sum = at::zeros({parameters.size()}, at::kDouble);
    for (const at::Tensor& one : group->channel().all_gather(parameters.gradients())) sum.add_(one);
    double total = 0;
    for (double one : group->control().gather(loss.sum.item<double>())) total += one;
    if (group->rank() == 0) outcome = {total, sum};
  });
  return outcome;
}

// A document packed with others is seen as if it were alone, and a window does not reach beyond it.
TEST(Llama, HasWindowsWithinDocuments) {
  const std::vector<int64_t> documents{21, 5, 38};
  const at::Tensor row = (at::arange(65, at::kLong) * 23 + at::arange(65, at::kLong).square()) % 40;
  Outcome alone{0, {}};
  int64_t begin = 0;
  for (int64_t length : documents) {
    const Outcome one = run(kShape, row.narrow(0, begin, length + 1), {}, 1);
    alone = {alone.loss + one.loss, alone.gradients.defined() ? alone.gradients + one.gradients : one.gradients};
    begin += length;
  }
  for (int ranks : {1, 8}) {
    const Outcome packed = run(kShape, row, documents, ranks);
    EXPECT_NEAR(packed.loss, alone.loss, 1e-5 * alone.loss) << ranks;
    EXPECT_LT((packed.gradients - alone.gradients).norm().item<double>(), 1e-4 * alone.gradients.norm().item<double>())
        << ranks;
  }
  LlamaConfig without = kShape;
  without.window = 0;
  EXPECT_GT(std::abs(run(without, row, documents, 1).loss - alone.loss), 1e-3 * alone.loss);  // the window matters
}

}  // namespace
}  // namespace startrail

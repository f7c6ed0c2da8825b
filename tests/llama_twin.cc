#include "tests/llama_twin.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/autograd.h>

#include <filesystem>
#include <set>

#include "startrail/base/testing.h"
#include "startrail/run/comm/ranks.h"
#include "startrail/train/loop/optimizer.h"
#include "startrail/train/model/parameters.h"
#include "startrail/train/model/weights.h"
#include "startrail/train/store/tensor_file.h"
#include "tests/python.h"

namespace startrail {
namespace {

namespace fs = std::filesystem;

// A rank's part of the reference's tokens.
Example make_example(const at::Tensor& row, Order layout, const Group& group) {
  const int64_t tokens = row.size(0) - 1;
  std::vector<at::Tensor> input, target;
  for (const Piece& piece : chunk_pieces({layout, tokens, group.size()}, group.rank())) {
    const at::Tensor places = at::arange(piece.count, at::kLong) * piece.stride + piece.first;
    input.push_back(row.index_select(0, places));
    target.push_back(row.index_select(0, places + 1));
  }
  return {tokens, {.causal = true}, at::cat(input), at::cat(target)};
}

double sum_over_ranks(Group& group, const at::Tensor& value) {
  double total = 0;
  for (double one : group.control().gather(value.item<double>())) total += one;
  return total;
}

struct Outcome {
  double loss = 0;
  std::map<std::string, at::Tensor> gradients;
};

// A rank's own are as the reference has them at their places.
void expect_logits(const Llama& model, const Example& example, const Sequence& sequence, const at::Tensor& expected) {
  const at::NoGradGuard no_grad;
  const at::Tensor error = model.logits(example, sequence) - expected.index_select(0, sequence.positions);
  EXPECT_LT(error.abs().max().item<double>(), 1e-4) << "logits of rank " << sequence.group->rank();
}

Outcome run_model(const fs::path& folder, const TensorFile& reference, const std::string& grid, int ranks,
                  bool recompute) {
  const at::Tensor row = reference.at("tokens"), logits = reference.at("logits");
  Outcome outcome;
  run_ranks(ranks, 2, [&](const std::shared_ptr<Group>& group) {
    const auto model = std::make_unique<Llama>(std::get<LlamaConfig>(read_config(folder)));
    ParameterRow parameters(*model, at::kFloat);
    parameters.weights().copy_(read_shard(open_weights(folder), *model, {0, parameters.size()}));
    AttentionOptions options;
    options.grid = parse_grid(grid, ranks);
    options.order = Order::zigzag;
    const Example example = make_example(row, options.order, *group);
    const Sequence sequence = make_sequence(example, options, group, recompute);
    expect_logits(*model, example, sequence, logits);
    const Loss loss = model->loss(example, sequence);
    torch::autograd::backward({loss.sum / static_cast<double>(example.tokens)});
    // Sums over ranks, in float64.
    at::Tensor sum = at::zeros({parameters.size()}, at::kDouble);
    for (const at::Tensor& one : group->channel().all_gather(parameters.gradients())) sum.add_(one);
    const double total = sum_over_ranks(*group, loss.sum);
    if (group->rank() != 0) return;
    outcome.loss = total / static_cast<double>(example.tokens);
    int64_t offset = 0;
    for (const Parameter& parameter : model->parameters()) {
      outcome.gradients[parameter.name] = sum.narrow(0, offset, parameter.size()).view(parameter.shape);
      offset += parameter.size();
    }
  });
  return outcome;
}

// Losses before each step of AdamW, on the tokens that llama_reference.py takes.
std::vector<double> run_steps(const fs::path& folder, const at::Tensor& row, const std::string& grid, int ranks,
                              int64_t steps) {
  constexpr int64_t kLength = 96, kStride = 20;
  std::vector<double> losses;
  run_ranks(ranks, 2, [&](const std::shared_ptr<Group>& group) {
    const auto model = make_model(read_config(folder));
    ParameterRow parameters(*model, at::kFloat);
    ShardedAdamW optimizer(*model, parameters, group, {});
    optimizer.set_weights(read_shard(open_weights(folder), *model, optimizer.shard()));
    AttentionOptions options;
    options.grid = parse_grid(grid, ranks);
    options.order = Order::zigzag;
    for (int64_t step = 0; step < steps; ++step) {
      const Example example = make_example(row.narrow(0, step * kStride, kLength + 1), options.order, *group);
      const Loss loss = model->loss(example, make_sequence(example, options, group, /*recompute=*/true));
      torch::autograd::backward({loss.sum});
      optimizer.step(/*learning_rate=*/1e-3, 1.0 / kLength);
      const double total = sum_over_ranks(*group, loss.sum);
      if (group->rank() == 0) losses.push_back(total / kLength);
    }
  });
  return losses;
}

void expect_steps_like_transformers(const fs::path& folder, const TensorFile& reference, const std::string& grid,
                                    int ranks) {
  const at::Tensor expected = reference.at("steps");
  const std::vector<double> losses = run_steps(folder, reference.at("tokens"), grid, ranks, expected.size(0));
  for (int64_t i = 0; i < expected.size(0); ++i)
    EXPECT_NEAR(losses[i], expected[i].item<double>(), 1e-4) << grid << " on " << ranks << ", step " << i;
}

void expect_like_transformers(const Outcome& outcome, const TensorFile& reference, const std::string& what) {
  const double loss = reference.at("loss").item<double>();
  EXPECT_NEAR(outcome.loss, loss, 1e-5 * loss) << what;
  for (const auto& [name, gradient] : outcome.gradients) {
    const at::Tensor expected = reference.at("grad." + name).to(at::kDouble);
    EXPECT_LT((gradient - expected).norm().item<double>(), 1e-4 * expected.norm().item<double>())
        << what << " " << name;
  }
}

// The key/value cache gives the same logits, token by token and several at a time.
void expect_cached_logits(const Llama& model, const at::Tensor& row, const at::Tensor& expected) {
  KeyValueCache cache = model.make_cache(300);
  for (int64_t begin = 0, count = 200; begin < 300; begin += count, count = begin < 250 ? 25 : 1) {
    const at::Tensor logits = model.next_logits(row.narrow(0, begin, count), cache);
    EXPECT_LT((logits - expected[begin + count - 1]).abs().max().item<double>(), 1e-4) << "after " << begin + count;
  }
}

}  // namespace

void expect_like_transformers_and_back(int64_t tokens, const std::vector<LlamaSplit>& splits) {
  const TempFolder folder;
  python(cat("llama_reference.py make ", folder.path(), " ", tokens));
  const std::set<std::string> split{"plain", "qwen2", "qwen3", "mistral"};
  for (const char* kind : {"plain", "tied", "linear", "llama3", "yarn", "qwen2", "qwen3", "mistral"}) {
    SCOPED_TRACE(kind);
    const fs::path made = folder.path(kind);
    const TensorFile reference = read_tensors(made / "reference.safetensors");
    expect_like_transformers(run_model(made, reference, "ring", 1, true), reference, "one rank, recomputing");
    expect_like_transformers(run_model(made, reference, "ring", 1, false), reference, "one rank, saving all");
    const auto model = load_llama(made, at::kFloat);
    expect_cached_logits(*model, reference.at("tokens"), reference.at("logits"));
    export_model(*model, made / "out", at::kFloat);
    if (!split.contains(kind)) continue;
    expect_steps_like_transformers(made, reference, "ring", 1);
    for (const auto& [grid, recompute, steps] : splits) {
      expect_like_transformers(run_model(made, reference, grid, 8, recompute), reference,
                               cat(grid, recompute ? ", recomputing" : ", saving all"));
      if (steps) expect_steps_like_transformers(made, reference, grid, 8);
    }
  }
  python(cat("llama_reference.py check ", folder.path()));
}

}  // namespace startrail

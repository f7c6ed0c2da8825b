#include "tests/llama_twin.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>

#include <filesystem>

#include "startrail/base/testing.h"
#include "startrail/run/comm/ranks.h"
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

struct Outcome {
  double loss = 0;
  std::map<std::string, at::Tensor> gradients;
};

Outcome run_model(const fs::path& folder, const at::Tensor& row, const std::string& grid, int ranks, bool recompute) {
  Outcome outcome;
  run_ranks(ranks, 2, [&](const std::shared_ptr<Group>& group) {
    const auto model = make_model(read_config(folder));
    ParameterRow parameters(*model, at::kFloat);
    parameters.weights().copy_(read_shard(open_weights(folder), *model, {0, parameters.size()}));
    AttentionOptions options;
    options.grid = parse_grid(grid, ranks);
    options.order = Order::zigzag;
    const Example example = make_example(row, options.order, *group);
    const Loss loss = model->loss(example, make_sequence(example, options, group, recompute));
    torch::autograd::backward({loss.sum / static_cast<double>(example.tokens)});
    // Sums over ranks, in float64.
    at::Tensor sum = at::zeros({parameters.size()}, at::kDouble);
    for (const at::Tensor& one : group->channel().all_gather(parameters.gradients())) sum.add_(one);
    double total = 0;
    for (double one : group->control().gather(loss.sum.item<double>())) total += one;
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
  for (const char* kind : {"plain", "tied", "linear", "llama3", "yarn"}) {
    SCOPED_TRACE(kind);
    const fs::path made = folder.path(kind);
    const TensorFile reference = read_tensors(made / "reference.safetensors");
    const at::Tensor row = reference.at("tokens");
    expect_like_transformers(run_model(made, row, "ring", 1, true), reference, "one rank, recomputing");
    expect_like_transformers(run_model(made, row, "ring", 1, false), reference, "one rank, saving all");
    const auto model = load_llama(made, at::kFloat);
    expect_cached_logits(*model, row, reference.at("logits"));
    export_model(*model, made / "out", at::kFloat);
    if (kind != std::string("plain")) continue;
    for (const auto& [grid, recompute] : splits)
      expect_like_transformers(run_model(made, row, grid, 8, recompute), reference,
                               cat(grid, recompute ? ", recomputing" : ", saving all"));
  }
  python(cat("llama_reference.py check ", folder.path()));
}

}  // namespace startrail

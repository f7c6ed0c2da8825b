#include "startrail/train/model/llama.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "startrail/base/error.h"
#include "startrail/train/model/block.h"

namespace startrail {
namespace {

// A layer's weights, in the order of the parameters.
enum Weight { kNorm1, kQuery, kKey, kValue, kOut, kNorm2, kGate, kUp, kDown, kWeights };
constexpr int64_t kFirstLayer = 1;  // after the embedding

constexpr double kDeviation = 0.02;

std::array<at::Tensor, 3> project(const LlamaConfig& config, const Rotation& rotation, const at::Tensor& x,
                                  const Weights& weights) {
  const at::Tensor normed = rms_norm(x, weights[kNorm1], config.norm_eps);
  const auto project_to = [&](Weight which) { return heads_of(dense(normed, weights[which]), config.head_dim); };
  return {as_batch(rotate(project_to(kQuery), rotation)), as_batch(rotate(project_to(kKey), rotation)),
          as_batch(project_to(kValue))};
}

at::Tensor finish(const LlamaConfig& config, const at::Tensor& x, const at::Tensor& out, const Weights& weights) {
  const at::Tensor middle = x + dense(out, weights[kOut]);
  const at::Tensor normed = rms_norm(middle, weights[kNorm2], config.norm_eps);
  return middle + dense(swiglu(dense(normed, weights[kGate]), dense(normed, weights[kUp])), weights[kDown]);
}

}  // namespace

Llama::Llama(const LlamaConfig& config) : config_(config) {
  check_config(config);
  frequencies_ = rope_frequencies(config.rope, config.head_dim);
  const int64_t dim = config.dim, hidden = config.hidden;
  const int64_t queries = config.heads * config.head_dim, keys = config.key_heads * config.head_dim;
  const auto matrix = [&](const std::string& name, int64_t rows, int64_t columns, double deviation) {
    parameters_.push_back({name + ".weight", {rows, columns}, 0, deviation, true});
  };
  const auto gain = [&](const std::string& name) { parameters_.push_back({name + ".weight", {dim}, 1, 0, false}); };
  // What writes to the residual stream starts smaller, so that its variance does not grow with depth (GPT-2).
  const double residual = kDeviation / std::sqrt(2.0 * static_cast<double>(config.layers));
  matrix("model.embed_tokens", config.vocabulary, dim, kDeviation);
  for (int64_t layer = 0; layer < config.layers; ++layer) {
    const std::string prefix = cat("model.layers.", layer, ".");
    gain(prefix + "input_layernorm");
    matrix(prefix + "self_attn.q_proj", queries, dim, kDeviation);
    matrix(prefix + "self_attn.k_proj", keys, dim, kDeviation);
    matrix(prefix + "self_attn.v_proj", keys, dim, kDeviation);
    matrix(prefix + "self_attn.o_proj", dim, queries, residual);
    gain(prefix + "post_attention_layernorm");
    matrix(prefix + "mlp.gate_proj", hidden, dim, kDeviation);
    matrix(prefix + "mlp.up_proj", hidden, dim, kDeviation);
    matrix(prefix + "mlp.down_proj", dim, hidden, residual);
  }
  gain("model.norm");
  if (!config.tied) matrix("lm_head", config.vocabulary, dim, kDeviation);
}

nlohmann::json Llama::config() const { return to_json(config_); }

Rotation Llama::rotation(const at::Tensor& positions) const {
  // In float64: at position 1,000,000 a float32 angle is off by 0.03.
  const at::Tensor angles =
      positions.to(at::kDouble).unsqueeze(1) * at::tensor(frequencies_.frequencies, at::kDouble).unsqueeze(0);
  return {(angles.cos() * frequencies_.gain).to(at::kFloat), (angles.sin() * frequencies_.gain).to(at::kFloat)};
}

std::vector<at::Tensor> Llama::layer_weights(int64_t layer) const {
  std::vector<at::Tensor> weights;
  for (int64_t i = 0; i < kWeights; ++i) weights.push_back(parameters_[kFirstLayer + layer * kWeights + i].value);
  return weights;
}

const at::Tensor& Llama::head() const { return (config_.tied ? parameters_.front() : parameters_.back()).value; }

at::Tensor Llama::hidden(const Example& example, const Sequence& sequence) const {
  const Rotation turn = rotation(sequence.positions);
  const BlockParts block{
      [this, turn](const at::Tensor& x, const Weights& weights) { return project(config_, turn, x, weights); },
      [this](const at::Tensor& x, const at::Tensor& out, const Weights& weights) {
        return finish(config_, x, out, weights);
      }};
  at::Tensor x = embed(example.input, parameters_.front().value);
  for (int64_t layer = 0; layer < config_.layers; ++layer)
    x = run_block(block, x, layer_weights(layer), sequence, layer);
  const at::Tensor& gain = parameters_[kFirstLayer + config_.layers * kWeights].value;
  return rms_norm(x, gain, config_.norm_eps);
}

Loss Llama::loss(const Example& example, const Sequence& sequence) const {
  const TokenLoss loss = head_loss(hidden(example, sequence), head(), example.target, loss_chunk(config_.vocabulary));
  return {loss.sum, (example.target >= 0).sum().item<int64_t>(), loss.each};
}

at::Tensor Llama::logits(const Example& example, const Sequence& sequence) const {
  return dense(hidden(example, sequence), head());
}

KeyValueCache Llama::make_cache(int64_t room) const {
  KeyValueCache cache;
  for (int64_t layer = 0; layer < config_.layers; ++layer)
    for (auto* tensors : {&cache.keys, &cache.values})
      tensors->push_back(at::empty({1, config_.key_heads, room, config_.head_dim}, head().options()));
  return cache;
}

at::Tensor Llama::next_logits(const at::Tensor& tokens, KeyValueCache& cache) const {
  const at::NoGradGuard no_grad;
  const int64_t count = tokens.size(0), seen = cache.tokens, all = seen + count;
  const Rotation turn = rotation(at::arange(seen, all, at::kLong));
  // Query i is token seen + i; it sees all up to itself.
  std::optional<at::Tensor> mask;
  if (count > 1 && seen > 0) mask = at::ones({count, all}, at::kBool).tril(seen);
  at::Tensor x = embed(tokens, parameters_.front().value);
  for (int64_t layer = 0; layer < config_.layers; ++layer) {
    const Weights weights = layer_weights(layer);
    const auto [q, k, v] = project(config_, turn, x, weights);
    cache.keys[layer].narrow(2, seen, count).copy_(k);
    cache.values[layer].narrow(2, seen, count).copy_(v);
    const at::Tensor out = at::scaled_dot_product_attention(
        q, cache.keys[layer].narrow(2, 0, all), cache.values[layer].narrow(2, 0, all), mask, /*dropout_p=*/0,
        /*is_causal=*/count > 1 && seen == 0, /*scale=*/std::nullopt,
        /*enable_gqa=*/config_.heads != config_.key_heads);
    x = finish(config_, x, out.squeeze(0).transpose(0, 1).flatten(1), weights);
  }
  cache.tokens = all;
  const at::Tensor& gain = parameters_[kFirstLayer + config_.layers * kWeights].value;
  return dense(rms_norm(x.narrow(0, count - 1, 1), gain, config_.norm_eps), head()).squeeze(0).to(at::kFloat);
}

int64_t loss_chunk(int64_t vocabulary) {
  constexpr int64_t kElements = int64_t{1} << 22;  // 16 MB of float32 logits
  return std::max<int64_t>(64, kElements / vocabulary);
}

}  // namespace startrail

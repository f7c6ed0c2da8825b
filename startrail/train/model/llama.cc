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

constexpr int64_t kFirstLayer = 1;  // after the embedding

constexpr double kDeviation = 0.02;

// A layer's weights, which come in the order in which they are named here. What a kind does not have is left out.
struct LayerWeights {
  LayerWeights(const LlamaConfig& config, const Weights& weights) {
    size_t next = 0;
    const auto take = [&](at::Tensor& weight) { weight = weights[next++]; };
    const auto take_if = [&](bool there, std::optional<at::Tensor>& weight) {
      if (there) weight = weights[next++];
    };
    take(norm1);
    take(query);
    take_if(config.query_bias(), query_bias);
    take(key);
    take_if(config.query_bias(), key_bias);
    take(value);
    take_if(config.query_bias(), value_bias);
    take(out);
    take_if(config.attention_bias, out_bias);
    take_if(config.head_norm(), query_norm);
    take_if(config.head_norm(), key_norm);
    take(norm2);
    take(gate);
    take(up);
    take(down);
  }
  at::Tensor norm1, query, key, value, out, norm2, gate, up, down;
  std::optional<at::Tensor> query_bias, key_bias, value_bias, out_bias, query_norm, key_norm;
};

std::array<at::Tensor, 3> project(const LlamaConfig& config, const Rotation& rotation, const at::Tensor& x,
                                  const Weights& weights) {
  const LayerWeights w(config, weights);
  const at::Tensor normed = rms_norm(x, w.norm1, config.norm_eps);
  const auto turned = [&](at::Tensor rows, const std::optional<at::Tensor>& gain) {
    if (gain) rows = rms_norm(rows.view({-1, config.head_dim}), *gain, config.norm_eps).view(rows.sizes());
    return as_batch(rotate(heads_of(rows, config.head_dim), rotation));
  };
  return {turned(dense(normed, w.query, w.query_bias), w.query_norm),
          turned(dense(normed, w.key, w.key_bias), w.key_norm),
          as_batch(heads_of(dense(normed, w.value, w.value_bias), config.head_dim))};
}

at::Tensor finish(const LlamaConfig& config, const at::Tensor& x, const at::Tensor& out, const Weights& weights) {
  const LayerWeights w(config, weights);
  const at::Tensor middle = x + dense(out, w.out, w.out_bias);
  const at::Tensor normed = rms_norm(middle, w.norm2, config.norm_eps);
  return middle + dense(swiglu(dense(normed, w.gate), dense(normed, w.up)), w.down);
}

// Attention of new tokens to those of a cache, themselves among them: q [1, heads, count, dim] are the last `count` of
// keys and values [1, key heads, all, dim]. With a window each sees the last `window` up to itself.
at::Tensor attend_cached(const at::Tensor& q, const at::Tensor& keys, const at::Tensor& values, int64_t window) {
  constexpr int64_t kPiece = 512;  // so that a long prompt makes no mask of its square
  const int64_t count = q.size(2), all = keys.size(2), seen = all - count;
  const bool grouped = q.size(1) != keys.size(1);
  if (window == 0 || window > all) window = all;
  const auto attend = [&](const at::Tensor& some, int64_t first, int64_t end, const std::optional<at::Tensor>& mask,
                          bool causal) {
    return at::scaled_dot_product_attention(some, keys.slice(2, first, end), values.slice(2, first, end), mask,
                                            /*dropout_p=*/0, causal, /*scale=*/std::nullopt, grouped);
  };
  if (count == 1) return attend(q, all - window, all, {}, false);
  if (seen == 0 && window == all) return attend(q, 0, all, {}, true);
  std::vector<at::Tensor> pieces;
  for (int64_t begin = 0; begin < count; begin += kPiece) {
    const int64_t some = std::min(kPiece, count - begin), place = seen + begin, end = place + some;
    const int64_t first = std::max<int64_t>(0, place - window + 1), offset = place - first;
    const at::Tensor mask = at::ones({some, end - first}, at::kBool).tril_(offset).triu_(offset - window + 1);
    pieces.push_back(attend(q.narrow(2, begin, some), first, end, mask, false));
  }
  return at::cat(pieces, 2);
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
  const auto gain = [&](const std::string& name, int64_t size) {
    parameters_.push_back({name + ".weight", {size}, 1, 0, false});
  };
  const auto bias = [&](bool there, const std::string& name, int64_t size) {
    if (there) parameters_.push_back({name + ".bias", {size}, 0, 0, false});
  };
  // What writes to the residual stream starts smaller, so that its variance does not grow with depth (GPT-2).
  const double residual = kDeviation / std::sqrt(2.0 * static_cast<double>(config.layers));
  matrix("model.embed_tokens", config.vocabulary, dim, kDeviation);
  for (int64_t layer = 0; layer < config.layers; ++layer) {
    const std::string prefix = cat("model.layers.", layer, ".");
    const std::string attention = prefix + "self_attn.";
    gain(prefix + "input_layernorm", dim);
    matrix(attention + "q_proj", queries, dim, kDeviation);
    bias(config.query_bias(), attention + "q_proj", queries);
    matrix(attention + "k_proj", keys, dim, kDeviation);
    bias(config.query_bias(), attention + "k_proj", keys);
    matrix(attention + "v_proj", keys, dim, kDeviation);
    bias(config.query_bias(), attention + "v_proj", keys);
    matrix(attention + "o_proj", dim, queries, residual);
    bias(config.attention_bias, attention + "o_proj", dim);
    if (config.head_norm()) {
      gain(attention + "q_norm", config.head_dim);
      gain(attention + "k_norm", config.head_dim);
    }
    gain(prefix + "post_attention_layernorm", dim);
    matrix(prefix + "mlp.gate_proj", hidden, dim, kDeviation);
    matrix(prefix + "mlp.up_proj", hidden, dim, kDeviation);
    matrix(prefix + "mlp.down_proj", dim, hidden, residual);
  }
  per_layer_ = (static_cast<int64_t>(parameters_.size()) - kFirstLayer) / config.layers;
  gain("model.norm", dim);
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
  for (int64_t i = 0; i < per_layer_; ++i) weights.push_back(parameters_[kFirstLayer + layer * per_layer_ + i].value);
  return weights;
}

const at::Tensor& Llama::last_gain() const { return parameters_[kFirstLayer + config_.layers * per_layer_].value; }

const at::Tensor& Llama::head() const { return (config_.tied ? parameters_.front() : parameters_.back()).value; }

at::Tensor Llama::hidden(const Example& example, const Sequence& sequence) const {
  const Rotation turn = rotation(sequence.positions);
  const BlockParts block{
      [this, turn](const at::Tensor& x, const Weights& weights) { return project(config_, turn, x, weights); },
      [this](const at::Tensor& x, const at::Tensor& out, const Weights& weights) {
        return finish(config_, x, out, weights);
      }};
  at::Tensor x = embed(example.input, parameters_.front().value);
  for (int64_t layer = 0; layer < config_.layers; ++layer) {
    Sequence windowed = sequence;
    windowed.attention.mask.window = config_.window_of(layer);
    x = run_block(block, x, layer_weights(layer), windowed, layer);
  }
  return rms_norm(x, last_gain(), config_.norm_eps);
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
  at::Tensor x = embed(tokens, parameters_.front().value);
  for (int64_t layer = 0; layer < config_.layers; ++layer) {
    const Weights weights = layer_weights(layer);
    const auto [q, k, v] = project(config_, turn, x, weights);
    cache.keys[layer].narrow(2, seen, count).copy_(k);
    cache.values[layer].narrow(2, seen, count).copy_(v);
    const at::Tensor out = attend_cached(q, cache.keys[layer].narrow(2, 0, all), cache.values[layer].narrow(2, 0, all),
                                         config_.window_of(layer));
    x = finish(config_, x, out.squeeze(0).transpose(0, 1).flatten(1), weights);
  }
  cache.tokens = all;
  return dense(rms_norm(x.narrow(0, count - 1, 1), last_gain(), config_.norm_eps), head()).squeeze(0).to(at::kFloat);
}

int64_t loss_chunk(int64_t vocabulary) {
  constexpr int64_t kElements = int64_t{1} << 22;  // 16 MB of float32 logits
  return std::max<int64_t>(64, kElements / vocabulary);
}

}  // namespace startrail

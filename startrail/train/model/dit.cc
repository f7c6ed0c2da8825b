#include "startrail/train/model/dit.h"

#include <ATen/ATen.h>
#include <cmath>
#include <nlohmann/json.hpp>

#include "startrail/base/error.h"
#include "startrail/train/model/block.h"
#include "startrail/train/model/llama_config.h"
#include "startrail/train/model/ops.h"

namespace startrail {
namespace {

// A layer's weights, in the order of the parameters; the classes' table is not there without classes.
enum Weight {
  kTimeIn,
  kTimeInBias,
  kTimeOut,
  kTimeOutBias,
  kModulation,
  kModulationBias,
  kQuery,
  kQueryBias,
  kKey,
  kKeyBias,
  kValue,
  kValueBias,
  kOut,
  kOutBias,
  kUp,
  kUpBias,
  kDown,
  kDownBias,
  kClass,
  kWeights
};
enum First { kPatch, kPatchBias, kFirstLayer };           // before the layers
enum Last { kEnd, kEndBias, kPixels, kPixelsBias };       // after them
constexpr int64_t kTimeWaves = 256;                       // features of a time
constexpr double kPeriod = 10000, kModulationEps = 1e-6;  // diffusers' constants

int64_t weights_per_layer(const DitConfig& config) { return config.classes > 0 ? kWeights : kClass; }

// What the tokens of each picture in a sequence share.
struct Shared {
  at::Tensor times;   // [pictures, kTimeWaves]
  at::Tensor labels;  // [pictures] int64, classes for none; undefined without classes
  at::Tensor member;  // [own tokens, pictures] of 0 and 1; undefined with one picture
};

// Rows [pictures, features] given to each token of its picture; one row is given to all as it is.
at::Tensor spread(const at::Tensor& rows, const Shared& shared) {
  return shared.member.defined() ? dense(shared.member, rows.t()) : rows;
}

// cos and sin of each time at kTimeWaves / 2 frequencies; in float32 step by step as diffusers does it, because at time
// 1,000 its rounding can be seen in the result.
at::Tensor time_waves(const std::vector<Condition>& conditions) {
  const int64_t half = kTimeWaves / 2;
  std::vector<double> times;
  for (const Condition& condition : conditions) times.push_back(condition.time);
  const at::Tensor frequencies = (at::arange(half, at::kFloat) * -std::log(kPeriod)).div_(half - 1).exp_();
  const at::Tensor angles = at::tensor(times, at::kFloat).unsqueeze(1) * frequencies;
  return at::cat({angles.cos(), angles.sin()}, 1);
}

at::Tensor label_rows(const std::vector<Condition>& conditions, int64_t classes) {
  std::vector<int64_t> rows;
  for (const Condition& condition : conditions) {
    if (condition.label >= classes)
      throw UserError(cat("class ", condition.label, " is not one of the model's ", classes));
    rows.push_back(condition.label < 0 ? classes : condition.label);
  }
  return at::tensor(rows, at::kLong);
}

at::Tensor condition(const Shared& shared, const Weights& w) {
  at::Tensor sum = dense(at::silu(dense(shared.times, w[kTimeIn], w[kTimeInBias])), w[kTimeOut], w[kTimeOutBias]);
  return shared.labels.defined() ? sum + embed(shared.labels, w[kClass]) : sum;
}

// `parts` rows of dim features for each token, or one row for all.
std::vector<at::Tensor> modulation(const Shared& shared, const at::Tensor& condition, const at::Tensor& weight,
                                   const at::Tensor& bias, int64_t parts) {
  return spread(dense(at::silu(condition), weight, bias), shared).chunk(parts, 1);
}

// norm(x) * (1 + scale) + shift.
at::Tensor norm_modulated(const at::Tensor& x, const at::Tensor& shift, const at::Tensor& scale, double eps) {
  const at::Tensor normed = std::get<0>(at::native_layer_norm(x, {x.size(1)}, {}, {}, eps));
  return at::addcmul(shift, normed, scale + 1);
}

// Of an axis that has `features`: as many waves as rotary positions of that width have, also for sines.
at::Tensor frequencies(int64_t features) {
  return at::tensor(rope_frequencies({.theta = kPeriod}, features).frequencies, at::kDouble);
}

// How many of `features` tell frame, row and column: a quarter the frame, if there is more than one.
std::array<int64_t, 3> axis_features(const DitConfig& config, int64_t features) {
  if (config.size[0] == 1) return {0, features / 2, features / 2};
  return {features / 4, features / 8 * 3, features / 8 * 3};
}

// Where the tokens are along each axis of their picture.
std::array<at::Tensor, 3> coordinates(const DitConfig& config, const at::Tensor& places) {
  const auto [frames, rows, columns] = config.patches();
  const at::Tensor place = places.remainder(config.tokens());
  return {place.floor_divide(rows * columns), place.floor_divide(columns).remainder(rows), place.remainder(columns)};
}

}  // namespace

Dit::Dit(const DitConfig& config) : config_(config) {
  check_config(config);
  const int64_t dim = config.dim(), patch = config.patch_size();
  const auto add = [&](const std::string& name, std::vector<int64_t> shape, double deviation, bool decay) {
    parameters_.push_back({name, std::move(shape), 0, deviation, decay});
  };
  const auto linear = [&](const std::string& name, int64_t out, int64_t in, double deviation) {
    add(name + ".weight", {out, in}, deviation, true);
    add(name + ".bias", {out}, 0, false);
  };
  // As published: Xavier's deviation, and zero for all that lets a block or the end speak (adaLN-zero).
  const auto xavier = [](int64_t out, int64_t in) { return std::sqrt(2.0 / static_cast<double>(in + out)); };
  constexpr double kSmall = 0.02;
  std::vector<int64_t> kernel{dim, config.channels};
  for (int axis = config.size[0] > 1 ? 0 : 1; axis < 3; ++axis) kernel.push_back(config.patch[axis]);
  add("pos_embed.proj.weight", kernel, xavier(dim, config.channels * patch), true);
  add("pos_embed.proj.bias", {dim}, 0, false);
  for (int64_t layer = 0; layer < config.layers; ++layer) {
    const std::string prefix = cat("transformer_blocks.", layer, ".");
    linear(prefix + "norm1.emb.timestep_embedder.linear_1", dim, kTimeWaves, kSmall);
    linear(prefix + "norm1.emb.timestep_embedder.linear_2", dim, dim, kSmall);
    linear(prefix + "norm1.linear", 6 * dim, dim, 0);
    linear(prefix + "attn1.to_q", dim, dim, xavier(dim, dim));
    linear(prefix + "attn1.to_k", dim, dim, xavier(dim, dim));
    linear(prefix + "attn1.to_v", dim, dim, xavier(dim, dim));
    linear(prefix + "attn1.to_out.0", dim, dim, xavier(dim, dim));
    linear(prefix + "ff.net.0.proj", 4 * dim, dim, xavier(4 * dim, dim));
    linear(prefix + "ff.net.2", dim, 4 * dim, xavier(dim, 4 * dim));
    if (config.classes > 0)
      add(prefix + "norm1.emb.class_embedder.embedding_table.weight", {config.classes + 1, dim}, kSmall, false);
  }
  linear("proj_out_1", 2 * dim, dim, 0);
  linear("proj_out_2", patch * config.out_channels, dim, 0);
  // The half that predicts a variance is kept as it is, also by weight decay.
  if (config.out_channels != config.channels) parameters_[parameters_.size() - 2].decay = false;
}

nlohmann::json Dit::config() const { return to_json(config_); }

std::vector<at::Tensor> Dit::layer_weights(int64_t layer) const {
  std::vector<at::Tensor> weights;
  const int64_t count = weights_per_layer(config_);
  for (int64_t i = 0; i < count; ++i) weights.push_back(parameters_[kFirstLayer + layer * count + i].value);
  return weights;
}

// Sine positions [tokens, dim]: of frame, column and row, sin then cos of each, as diffusers orders them.
at::Tensor Dit::positions_of(const at::Tensor& places) const {
  const auto features = axis_features(config_, config_.dim());
  const auto where = coordinates(config_, places);
  std::vector<at::Tensor> parts;
  for (int axis : {0, 2, 1}) {
    if (features[axis] == 0) continue;
    const at::Tensor angles =
        at::arange(config_.patches()[axis], at::kDouble).unsqueeze(1) * frequencies(features[axis]);
    parts.push_back(at::cat({angles.sin(), angles.cos()}, 1).to(at::kFloat).index_select(0, where[axis]));
  }
  return at::cat(parts, 1);
}

at::Tensor Dit::predict(const at::Tensor& patches, const std::vector<Condition>& conditions,
                        const Sequence& sequence) const {
  const auto pictures = static_cast<int64_t>(conditions.size());
  STARTRAIL_CHECK(pictures * config_.tokens() == sequence.attention.tokens, pictures, " pictures in ",
                  sequence.attention.tokens, " tokens");
  const auto type = parameters_.front().value.scalar_type();
  const at::Tensor& places = sequence.positions;
  Shared shared{time_waves(conditions).to(type), {}, {}};
  if (config_.classes > 0) shared.labels = label_rows(conditions, config_.classes);
  if (pictures > 1)
    shared.member = (places.floor_divide(config_.tokens()).unsqueeze(1) == at::arange(pictures, at::kLong)).to(type);

  const bool rotary = config_.positions == "rotary";
  Rotation turn;
  at::Tensor x = dense(patches.to(type), parameters_[kPatch].value.flatten(1), parameters_[kPatchBias].value);
  if (rotary) {
    const auto features = axis_features(config_, config_.head_dim);
    const auto where = coordinates(config_, places);
    std::vector<at::Tensor> parts;
    for (int axis = 0; axis < 3; ++axis)
      if (features[axis] > 0) parts.push_back(where[axis].to(at::kDouble).unsqueeze(1) * frequencies(features[axis]));
    const at::Tensor angles = at::cat(parts, 1);
    turn = {angles.cos().to(at::kFloat), angles.sin().to(at::kFloat)};
  } else {
    x = x + positions_of(places).to(type);
  }

  const BlockParts block{
      [this, shared, turn, rotary](const at::Tensor& x, const Weights& w) -> std::array<at::Tensor, 3> {
        const auto m = modulation(shared, condition(shared, w), w[kModulation].narrow(0, 0, 2 * config_.dim()),
                                  w[kModulationBias].narrow(0, 0, 2 * config_.dim()), 2);
        const at::Tensor normed = norm_modulated(x, m[0], m[1], kModulationEps);
        const auto project = [&](Weight weight, Weight bias) {
          return heads_of(dense(normed, w[weight], w[bias]), config_.head_dim);
        };
        at::Tensor q = project(kQuery, kQueryBias), k = project(kKey, kKeyBias);
        if (rotary) {
          q = rotate(q, turn);
          k = rotate(k, turn);
        }
        return {as_batch(q), as_batch(k), as_batch(project(kValue, kValueBias))};
      },
      [this, shared](const at::Tensor& x, const at::Tensor& out, const Weights& w) {
        const int64_t dim = config_.dim();
        const auto m = modulation(shared, condition(shared, w), w[kModulation].narrow(0, 2 * dim, 4 * dim),
                                  w[kModulationBias].narrow(0, 2 * dim, 4 * dim), 4);
        const at::Tensor middle = at::addcmul(x, m[0], dense(out, w[kOut], w[kOutBias]));
        const at::Tensor normed = norm_modulated(middle, m[1], m[2], config_.norm_eps);
        const at::Tensor wide = at::gelu(dense(normed, w[kUp], w[kUpBias]), "tanh");
        return at::addcmul(middle, m[3], dense(wide, w[kDown], w[kDownBias]));
      }};
  for (int64_t layer = 0; layer < config_.layers; ++layer)
    x = run_block(block, x, layer_weights(layer), sequence, layer);

  // The end is modulated by the first layer's view of time and class.
  const int64_t last = kFirstLayer + config_.layers * weights_per_layer(config_);
  const auto value = [&](Last which) { return parameters_[last + which].value; };
  const auto m = modulation(shared, condition(shared, layer_weights(0)), value(kEnd), value(kEndBias), 2);
  const at::Tensor rows = dense(norm_modulated(x, m[0], m[1], kModulationEps), value(kPixels), value(kPixelsBias));
  // [tokens, patch, channels] as diffusers has it; the channels of a variance are left out.
  return rows.view({rows.size(0), config_.patch_size(), config_.out_channels})
      .narrow(2, 0, config_.channels)
      .transpose(1, 2)
      .flatten(1);
}

Loss Dit::loss(const Example& example, const Sequence& sequence) const {
  const at::Tensor off = predict(example.input, example.conditions, sequence).to(at::kFloat) - example.target;
  const at::Tensor each = off.square().mean(1);
  return {each.sum(at::kDouble), each.size(0), each.detach()};
}

}  // namespace startrail

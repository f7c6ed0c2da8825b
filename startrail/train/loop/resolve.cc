#include "startrail/train/loop/resolve.h"

#include <algorithm>
#include <cmath>

#include "startrail/base/error.h"

namespace startrail {
namespace {

constexpr int64_t kUsualTokens = 4096;  // of a GPT's sequence

// 0 leaves the preset's value.
void set(int64_t& value, int64_t given) {
  if (given > 0) value = given;
}

Rope rope_of(const TrainConfig& config) {
  const auto& m = config.model;
  return {.type = m.rope_scaling,
          .theta = m.rope_theta,
          .factor = m.rope_factor,
          .original_tokens = static_cast<double>(m.rope_original_tokens),
          .low_frequency = m.rope_low_frequency,
          .high_frequency = m.rope_high_frequency,
          .beta_fast = m.rope_beta_fast,
          .beta_slow = m.rope_beta_slow};
}

LlamaConfig llama_config(const TrainConfig& config) {
  const auto& m = config.model;
  if (m.kind != "llama")
    throw UserError(
        cat("model.kind ", m.kind, " is not for new models, only llama: give a folder of a ", m.kind, " with --from"));
  LlamaConfig model = llama_preset(m.preset);
  set(model.vocabulary, m.vocabulary);
  set(model.dim, m.dim);
  set(model.layers, m.layers);
  set(model.hidden, m.hidden);
  if (m.heads > 0) {
    model.heads = m.heads;
    model.key_heads = m.heads;
  }
  set(model.key_heads, m.kv_heads);
  if (m.heads > 0 || m.dim > 0) model.head_dim = model.dim / model.heads;
  set(model.head_dim, m.head_dim);
  if (m.head_dim == 0 && model.heads * model.head_dim != model.dim)
    throw UserError(cat("model.heads ", model.heads, " must divide model.dim ", model.dim, ", or set model.head_dim"));
  if (m.tied != "preset") model.tied = m.tied == "true";
  model.norm_eps = m.norm_eps;
  model.rope = rope_of(config);
  model.max_tokens = config.train.tokens > 0 ? config.train.tokens : kUsualTokens;
  check_config(model);
  return model;
}

void set_shape(TrainConfig& config, const LlamaConfig& model) {
  auto& m = config.model;
  m.vocabulary = model.vocabulary;
  m.dim = model.dim;
  m.layers = model.layers;
  m.heads = model.heads;
  m.kv_heads = model.key_heads;
  m.head_dim = model.head_dim;
  m.hidden = model.hidden;
  m.tied = model.tied ? "true" : "false";
  m.kind = model.kind;
  m.norm_eps = model.norm_eps;
  // What the type does not use stays at its default.
  const Rope &rope = model.rope, unused;
  const bool llama3 = rope.type == "llama3", yarn = rope.type == "yarn";
  m.rope_theta = rope.theta;
  m.rope_scaling = rope.type;
  m.rope_factor = rope.type == "default" ? unused.factor : rope.factor;
  m.rope_original_tokens = llama3 || yarn ? static_cast<int64_t>(rope.original_tokens) : 0;
  m.rope_low_frequency = llama3 ? rope.low_frequency : unused.low_frequency;
  m.rope_high_frequency = llama3 ? rope.high_frequency : unused.high_frequency;
  m.rope_beta_fast = yarn ? rope.beta_fast : unused.beta_fast;
  m.rope_beta_slow = yarn ? rope.beta_slow : unused.beta_slow;
}

DitConfig dit_config(const TrainConfig& config) {
  const auto& m = config.model;
  DitConfig model = dit_preset(m.preset);
  set(model.layers, m.layers);
  set(model.heads, m.heads);
  if (m.dim > 0 && m.head_dim == 0) {
    if (m.dim % model.heads != 0) throw UserError(cat("model.heads ", model.heads, " must divide model.dim ", m.dim));
    model.head_dim = m.dim / model.heads;
  } else if (m.heads > 0 && m.head_dim == 0) {
    const int64_t dim = dit_preset(m.preset).dim();
    if (dim % model.heads != 0)
      throw UserError(cat("model.heads ", model.heads, " must divide model.dim ", dim, ": set model.dim too"));
    model.head_dim = dim / model.heads;
  }
  set(model.head_dim, m.head_dim);
  if (m.dim > 0 && model.dim() != m.dim)
    throw UserError(cat("model.dim ", m.dim, " must be heads ", model.heads, " x head_dim ", model.head_dim,
                        " in a DiT: leave one of them out"));
  set(model.channels, m.channels);
  model.out_channels = model.channels;
  model.classes = std::max<int64_t>(0, m.classes);
  const int64_t size[] = {m.frames, m.height, m.width}, patch[] = {m.patch_frames, m.patch_height, m.patch_width};
  for (int axis = 0; axis < 3; ++axis) {
    set(model.size[axis], size[axis]);
    set(model.patch[axis], patch[axis]);
  }
  if (m.positions != "preset") model.positions = m.positions;
  if (m.objective != "preset") model.objective = m.objective;
  model.norm_eps = m.norm_eps;
  check_config(model);
  return model;
}

void set_shape(TrainConfig& config, const DitConfig& model) {
  auto& m = config.model;
  m.layers = model.layers;
  m.heads = model.heads;
  m.head_dim = model.head_dim;
  m.dim = model.dim();
  m.channels = model.channels;
  m.classes = model.classes;
  m.frames = model.size[0];
  m.height = model.size[1];
  m.width = model.size[2];
  m.patch_frames = model.patch[0];
  m.patch_height = model.patch[1];
  m.patch_width = model.patch[2];
  m.positions = model.positions;
  m.objective = model.objective;
  m.norm_eps = model.norm_eps;
}

// A preset given beside a model that is there must be the model's own.
void check_preset(const std::string& preset, const ModelConfig& held, const std::string& where) {
  TrainConfig bare;
  bare.model.preset = preset;
  const Dimensions named = dimensions(model_config(bare)), there = dimensions(held);
  if (is_dit(bare) != std::holds_alternative<DitConfig>(held) || named.dim != there.dim ||
      named.layers != there.layers || named.heads != there.heads)
    throw UserError(
        cat("model.preset ", preset, " is not what ", where, " has: leave it out, the shape comes from there"));
}

// A value that asks for nothing: the preset's, or the data's.
bool is_open(const std::string& name, const Value& value) {
  if (const auto* whole = std::get_if<int64_t>(&value)) return *whole == (name == "model.classes" ? -1 : 0);
  const auto* text = std::get_if<std::string>(&value);
  return text && *text == "preset";
}

// Whether what was set changes the base's model. UserError where that may not be.
bool changes_model(TrainConfig config, const Base& base, const Overrides& overrides) {
  TrainConfig held = with_model(config, *base.model);
  const Settings ours = settings_of(config), theirs = settings_of(held);
  bool changed = false;
  for (const auto& [name, given] : overrides) {
    if (!name.starts_with("model.") || name == "model.preset") continue;
    const Setting &now = find_setting(ours, name), &there = find_setting(theirs, name);
    if (is_open(name, present_value(now)) || present_value(now) == present_value(there)) continue;
    if (base.resumes || !(name.starts_with("model.rope_") || name == "model.objective"))
      throw UserError(cat(
          name, " = ", value_text(now), " is not what ", base.where, " has, ", value_text(there), ": leave it out",
          base.resumes                                     ? ""
          : std::holds_alternative<DitConfig>(*base.model) ? "; of a model's settings only objective can be changed"
                                                           : "; of a model's settings only rope_... can be changed"));
    changed = true;
  }
  return changed;
}

// The base's model with what was set.
ModelConfig changed_model(const TrainConfig& config, const Base& base, const Overrides& overrides) {
  const bool changed = changes_model(config, base, overrides);
  ModelConfig model = *base.model;
  if (auto* dit = std::get_if<DitConfig>(&model)) {
    if (changed) dit->objective = config.model.objective;
    return model;
  }
  auto& llama = std::get<LlamaConfig>(model);
  if (changed) {
    const double before = llama.rope.original_tokens;
    llama.rope = rope_of(config);
    if (llama.rope.original_tokens == 0) llama.rope.original_tokens = std::floor(before);
  }
  llama.max_tokens = std::max(llama.max_tokens, config.train.tokens);
  check_config(model);
  return model;
}

}  // namespace

bool is_dit(const TrainConfig& config) { return config.model.preset.starts_with("dit-"); }

ModelConfig model_config(const TrainConfig& config) {
  if (is_dit(config)) return dit_config(config);
  return llama_config(config);
}

TrainConfig with_model(TrainConfig config, const ModelConfig& model) {
  const bool dit = std::holds_alternative<DitConfig>(model);
  if (dit != is_dit(config)) config.model.preset = (dit ? dit_presets() : llama_presets()).front();
  std::visit([&](const auto& one) { set_shape(config, one); }, model);
  return config;
}

Resolved resolve(const Base& base, const Overrides& overrides) {
  TrainConfig config = base.model ? with_model(base.config, *base.model) : base.config;
  const std::string preset = config.model.preset;
  set_values(settings_of(config), overrides);
  if (base.model && config.model.preset != preset) check_preset(config.model.preset, *base.model, base.where);
  const ModelConfig model = base.model ? changed_model(config, base, overrides) : model_config(config);
  check_settings(config);
  const auto* dit = std::get_if<DitConfig>(&model);
  if (config.run.folder.empty()) config.run.folder = dit ? "runs/dit" : "runs/gpt";
  if (config.train.tokens == 0) config.train.tokens = dit ? dit->tokens() : kUsualTokens;
  return {std::move(config), model};
}

std::string changes(const std::string& table, const Overrides& overrides, TrainConfig now, TrainConfig before) {
  const Settings ours = settings_of(now), theirs = settings_of(before);
  std::vector<std::string> found;
  for (const auto& [name, given] : overrides) {
    if (!name.starts_with(table)) continue;
    const Setting &is = find_setting(ours, name), &was = find_setting(theirs, name);
    if (present_value(is) != present_value(was))
      found.push_back(cat(name, " is ", value_text(is), " and was ", value_text(was)));
  }
  return join(found);
}

}  // namespace startrail

#include "startrail/train/model/dit_config.h"

#include <nlohmann/json.hpp>
#include <utility>

#include "startrail/base/error.h"
#include "startrail/train/model/json_fields.h"

namespace startrail {
namespace {

using nlohmann::json;

constexpr const char *kPlain = "DiTTransformer2DModel", *kOwn = "StarTrailDiT";

DitConfig latent(int64_t layers, int64_t heads, int64_t head_dim, int64_t side) {
  DitConfig config;
  config.layers = layers;
  config.heads = heads;
  config.head_dim = head_dim;
  config.channels = config.out_channels = 4;
  config.size = {1, side, side};
  config.patch = {1, 2, 2};
  return config;
}

const std::vector<std::pair<std::string, DitConfig>>& presets() {
  // S, B and XL as published (arXiv 2212.09748), on the latents of pictures of 256 x 256; 1b on those of 1024 x 1024.
  static const std::vector<std::pair<std::string, DitConfig>> all{{"dit-tiny", DitConfig{}},
                                                                  {"dit-s/2", latent(12, 6, 64, 32)},
                                                                  {"dit-b/2", latent(12, 12, 64, 32)},
                                                                  {"dit-xl/2", latent(28, 16, 72, 32)},
                                                                  {"dit-1b", latent(24, 24, 64, 128)}};
  return all;
}

constexpr const char* kAxes[] = {"frames", "height", "width"};

}  // namespace

bool DitConfig::is_plain() const {
  return classes > 0 && positions == "sine" && size[0] == 1 && patch[0] == 1 && size[1] == size[2] &&
         patch[1] == patch[2];
}

int64_t DitConfig::parameters() const {
  const int64_t d = dim(), condition = 256 * d + d + d * d + d + (classes > 0 ? (classes + 1) * d : 0);
  const int64_t block = condition + 6 * (d * d + d) + 4 * (d * d + d) + 8 * d * d + 5 * d;
  const int64_t in = channels * patch_size() * d + d, out = 2 * (d * d + d) + out_channels * patch_size() * (d + 1);
  return in + layers * block + out;
}

void check_config(const DitConfig& config) {
  const std::pair<const char*, int64_t> counts[] = {
      {"layers", config.layers},       {"heads", config.heads},           {"head_dim", config.head_dim},
      {"channels", config.channels},   {"frames", config.size[0]},        {"height", config.size[1]},
      {"width", config.size[2]},       {"patch_frames", config.patch[0]}, {"patch_height", config.patch[1]},
      {"patch_width", config.patch[2]}};
  for (const auto& [name, value] : counts)
    if (value < 1 || value > (int64_t{1} << 20))
      throw UserError(cat("model ", name, " ", value, " must be 1 or more, and at most 2^20"));
  const auto real = [](int64_t value) { return static_cast<double>(value); };
  const double dim = real(config.heads) * real(config.head_dim),
               patch = real(config.patch[0]) * real(config.patch[1]) * real(config.patch[2]);
  const double parameters =
      real(config.layers) * (18 * dim + real(config.classes)) * dim + real(config.channels) * patch * dim * 3;
  if (parameters > 1e15)
    throw UserError(cat("a model of about ", parameters, " parameters is beyond any memory: at most 1e15 are counted"));
  const double pixels = real(config.channels) * real(config.size[0]) * real(config.size[1]) * real(config.size[2]);
  if (pixels > 1e12)
    throw UserError(cat("a picture of ", pixels, " numbers is beyond any memory: at most 1e12 are counted"));
  if (config.classes < 0 || config.classes > (int64_t{1} << 24))
    throw UserError(cat("model classes ", config.classes, " must be 0 or more, and at most 2^24"));
  for (int axis = 0; axis < 3; ++axis)
    if (config.size[axis] % config.patch[axis] != 0)
      throw UserError(cat("model patch_", kAxes[axis], " ", config.patch[axis], " must divide ", kAxes[axis], " ",
                          config.size[axis]));
  const bool video = config.size[0] > 1;
  if (config.positions != "sine" && config.positions != "rotary")
    throw UserError(cat("model positions '", config.positions, "' is not known; valid: sine, rotary"));
  if (config.objective != "flow" && config.objective != "ddpm")
    throw UserError(cat("model objective '", config.objective, "' is not known; valid: flow, ddpm"));
  const int64_t shared = config.positions == "sine" ? config.dim() : config.head_dim, step = video ? 16 : 4;
  if (shared % step != 0)
    throw UserError(cat("model ", config.positions == "sine" ? "dim (heads x head_dim) " : "head_dim ", shared,
                        " must be a multiple of ", step, " to hold ", config.positions, " positions of ",
                        video ? "three" : "two", " axes"));
  if (config.out_channels != config.channels && config.out_channels != 2 * config.channels)
    throw UserError(
        cat("model out_channels ", config.out_channels, " must be channels ", config.channels, " or twice as many"));
  if (!(config.norm_eps > 0)) throw UserError(cat("model norm_eps ", config.norm_eps, " must be above 0"));
}

DitConfig dit_preset(std::string_view name) {
  for (const auto& [known, config] : presets())
    if (known == name) return config;
  throw UserError(cat("preset '", name, "' is not known; valid: ", join(dit_presets())));
}

std::vector<std::string> dit_presets() {
  std::vector<std::string> names;
  for (const auto& [name, config] : presets()) names.push_back(name);
  return names;
}

DitConfig dit_from_json(const json& j, std::string_view where) {
  const auto kind = get_or<std::string>(j, "_class_name", "", where);
  // The published models still carry the name of the class that DiTTransformer2DModel was split off from.
  const bool older = kind == "Transformer2DModel" && get_or<std::string>(j, "norm_type", "", where) == "ada_norm_zero";
  if (kind != kPlain && kind != kOwn && !older)
    throw UserError(cat(where, " has _class_name '", kind, "'; supported: ", kPlain, ", ", kOwn));
  const auto only = [&]<class Value>(const char* key, const Value& expected) {
    if (get_or(j, key, expected, where) != expected)
      throw UserError(cat(where, ": ", key, " ", j.at(key).dump(), " is not supported, only ", json(expected).dump()));
  };
  only("dropout", 0.0);
  only("attention_bias", true);
  only("norm_elementwise_affine", false);
  only("activation_fn", std::string("gelu-approximate"));
  only("norm_type", std::string("ada_norm_zero"));
  // What a file leaves out has diffusers' default.
  DitConfig config;
  config.layers = get_or<int64_t>(j, "num_layers", 28, where);
  config.heads = get_or<int64_t>(j, "num_attention_heads", 16, where);
  config.head_dim = get_or<int64_t>(j, "attention_head_dim", 72, where);
  config.channels = get_or<int64_t>(j, "in_channels", 4, where);
  config.out_channels = get_or(j, "out_channels", config.channels, where);
  config.classes = get_or<int64_t>(j, "num_embeds_ada_norm", 1000, where);
  config.names = get_or(j, "class_names", config.names, where);
  config.guided = get_or(j, "guided", true, where);
  config.norm_eps = get_or(j, "norm_eps", 1e-5, where);
  config.objective = get_or<std::string>(j, "objective", "ddpm", where);
  const auto side = get_or<int64_t>(j, "sample_size", 32, where), patch = get_or<int64_t>(j, "patch_size", 2, where);
  config.size = {1, side, side};
  config.patch = {1, patch, patch};
  if (kind == kOwn) {
    config.positions = get<std::string>(j, "positions", where);
    for (int axis = 0; axis < 3; ++axis) {
      config.size[axis] = get<int64_t>(j, cat("sample_", kAxes[axis]).c_str(), where);
      config.patch[axis] = get<int64_t>(j, cat("patch_", kAxes[axis]).c_str(), where);
    }
  }
  check_config(config);
  return config;
}

json to_json(const DitConfig& config) {
  json j = {{"_class_name", config.is_plain() ? kPlain : kOwn},
            {"num_layers", config.layers},
            {"num_attention_heads", config.heads},
            {"attention_head_dim", config.head_dim},
            {"in_channels", config.channels},
            {"out_channels", config.out_channels},
            {"num_embeds_ada_norm", config.classes},
            {"activation_fn", "gelu-approximate"},
            {"attention_bias", true},
            {"norm_type", "ada_norm_zero"},
            {"norm_elementwise_affine", false},
            {"norm_eps", config.norm_eps},
            {"dropout", 0.0}};
  if (config.objective != "ddpm") j["objective"] = config.objective;  // without it: as the published models
  if (!config.names.empty()) j["class_names"] = config.names;
  if (!config.guided) j["guided"] = false;
  if (config.is_plain()) {
    j["sample_size"] = config.size[1];
    j["patch_size"] = config.patch[1];
    return j;
  }
  j["positions"] = config.positions;
  for (int axis = 0; axis < 3; ++axis) {
    j[cat("sample_", kAxes[axis])] = config.size[axis];
    j[cat("patch_", kAxes[axis])] = config.patch[axis];
  }
  return j;
}

}  // namespace startrail

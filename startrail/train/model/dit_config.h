// The shape of a diffusion transformer (DiT): presets, and config.json read and written as diffusers has it where its
// DiTTransformer2DModel can express the model, with keys of our own where it cannot (video, rotary positions, no
// classes, other shapes than squares).
#pragma once

#include <array>
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace startrail {

struct DitConfig {
  int64_t layers = 4;
  int64_t heads = 4, head_dim = 32;
  int64_t channels = 3;
  int64_t out_channels = 3;  // twice as many where a model was trained to predict a variance too; that half is not used
  int64_t classes = 0;       // 0: pictures are not told apart
  std::vector<std::string> names = {};     // of the classes, as far as known
  bool guided = true;                      // trained without a class too, which guidance needs
  std::array<int64_t, 3> size{1, 32, 32};  // frames, height, width
  std::array<int64_t, 3> patch{1, 4, 4};   // of the same axes
  std::string positions = "sine";          // or rotary
  std::string objective = "flow";          // what it predicts: flow (noise - picture) or ddpm (noise)
  double norm_eps = 1e-5;

  int64_t dim() const { return heads * head_dim; }
  int64_t patch_size() const { return patch[0] * patch[1] * patch[2]; }
  // Patches along each axis, and in all.
  std::array<int64_t, 3> patches() const { return {size[0] / patch[0], size[1] / patch[1], size[2] / patch[2]}; }
  int64_t tokens() const { return patches()[0] * patches()[1] * patches()[2]; }
  int64_t parameters() const;
  // Whether diffusers has this form.
  bool is_plain() const;
};

// UserError, naming the value and the rule, for shapes that cannot be.
void check_config(const DitConfig& config);

// dit-tiny, dit-s/2, dit-b/2, dit-xl/2, dit-1b; UserError names them.
DitConfig dit_preset(std::string_view name);
std::vector<std::string> dit_presets();

// UserError for a missing key or something that would change the result and is not supported here; `where` names the
// file.
DitConfig dit_from_json(const nlohmann::json& json, std::string_view where);
nlohmann::json to_json(const DitConfig& config);

}  // namespace startrail

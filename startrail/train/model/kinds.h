// The kinds of model there are, by their configurations.
#pragma once

#include <memory>
#include <variant>

#include "startrail/train/model/dit_config.h"
#include "startrail/train/model/llama_config.h"
#include "startrail/train/model/model.h"

namespace startrail {

using ModelConfig = std::variant<LlamaConfig, DitConfig>;

std::unique_ptr<Model> make_model(const ModelConfig& config);

// What a config.json describes; UserError for another kind. `where` names the file.
ModelConfig model_from_json(const nlohmann::json& json, std::string_view where);

void check_config(const ModelConfig& config);

// What every transformer has.
struct Dimensions {
  int64_t layers = 0, dim = 0, heads = 0, key_heads = 0, head_dim = 0, parameters = 0;
};
Dimensions dimensions(const ModelConfig& config);

}  // namespace startrail

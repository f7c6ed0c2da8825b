#include "startrail/train/model/kinds.h"

#include <nlohmann/json.hpp>

#include "startrail/base/error.h"
#include "startrail/train/model/dit.h"
#include "startrail/train/model/llama.h"

namespace startrail {
namespace {

std::unique_ptr<Model> made(const LlamaConfig& config) { return std::make_unique<Llama>(config); }
std::unique_ptr<Model> made(const DitConfig& config) { return std::make_unique<Dit>(config); }

Dimensions dimensions_of(const LlamaConfig& c) {
  return {c.layers, c.dim, c.heads, c.key_heads, c.head_dim, c.parameters()};
}
Dimensions dimensions_of(const DitConfig& c) {
  return {c.layers, c.dim(), c.heads, c.heads, c.head_dim, c.parameters()};
}

}  // namespace

std::unique_ptr<Model> make_model(const ModelConfig& config) {
  return std::visit([](const auto& one) { return made(one); }, config);
}

ModelConfig model_from_json(const nlohmann::json& json, std::string_view where) {
  if (!json.is_object()) throw UserError(cat(where, " is no model configuration: it is not a JSON object"));
  if (json.contains("_class_name")) return dit_from_json(json, where);
  return llama_from_json(json, where);
}

void check_config(const ModelConfig& config) {
  std::visit([](const auto& one) { check_config(one); }, config);
}

Dimensions dimensions(const ModelConfig& config) {
  return std::visit([](const auto& one) { return dimensions_of(one); }, config);
}

}  // namespace startrail

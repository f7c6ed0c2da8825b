#include "startrail/train/model/weights.h"

#include <ATen/ATen.h>
#include <cmath>
#include <nlohmann/json.hpp>
#include <set>

#include "startrail/base/error.h"
#include "startrail/base/file.h"

namespace startrail {

namespace fs = std::filesystem;

namespace {

constexpr const char* kNames[] = {kWeightsFile, kDiffusersWeightsFile};

void load_weights(Model& model, const fs::path& folder, at::ScalarType type, Which which) {
  const bool mean = which == Which::mean && fs::exists(folder / kMeanFile);
  const auto weights = mean ? read_tensors(folder / kMeanFile).tensors : open_weights(folder);
  const at::Tensor row = read_shard(weights, model, {0, count_parameters(model)}).to(type);
  int64_t offset = 0;
  for (Parameter& parameter : model.parameters()) {
    parameter.value = row.narrow(0, offset, parameter.size()).view(parameter.shape);
    offset += parameter.size();
  }
}

template <class Kind, class Config>
std::unique_ptr<Kind> load_kind(const fs::path& folder, at::ScalarType type, Which which, const char* other) {
  const ModelConfig config = read_config(folder);
  if (!std::holds_alternative<Config>(config)) throw UserError(cat(folder.string(), " holds ", other));
  auto model = std::make_unique<Kind>(std::get<Config>(config));
  load_weights(*model, folder, type, which);
  return model;
}

}  // namespace

ModelConfig read_config(const fs::path& folder) {
  const fs::path file = folder / kModelFile;
  if (!fs::exists(file))
    throw UserError(cat(folder.string(),
                        " holds no model: it has neither config.json (and model.safetensors) nor a run's complete ",
                        "checkpoint"));
  return model_from_json(read_json(file), file.string());
}

std::unique_ptr<Llama> load_llama(const fs::path& folder, at::ScalarType type, Which which) {
  return load_kind<Llama, LlamaConfig>(folder, type, which, "a DiT, which draws pictures: this is for a GPT");
}
std::unique_ptr<Dit> load_dit(const fs::path& folder, at::ScalarType type, Which which) {
  return load_kind<Dit, DitConfig>(folder, type, which, "a GPT, which writes text: this is for a DiT");
}
std::unique_ptr<Model> load_model(const fs::path& folder, at::ScalarType type, Which which) {
  auto model = make_model(read_config(folder));
  load_weights(*model, folder, type, which);
  return model;
}

std::map<std::string, at::Tensor> open_weights(const fs::path& folder) {
  for (const char* name : kNames)
    if (fs::exists(folder / name)) return read_tensors(folder / name).tensors;
  fs::path index;
  for (const char* name : kNames)
    if (const fs::path file = folder / cat(name, ".index.json"); fs::exists(file)) index = file;
  if (index.empty())
    throw UserError(cat(folder.string(), " holds no weights: it has neither ", join(kNames, " nor "),
                        ", nor an index of several files (weights in other formats are not read)"));
  std::set<std::string> files;
  const nlohmann::json json = read_json(index);
  if (!json.contains("weight_map") || !json["weight_map"].is_object())
    throw UserError(cat(index.string(), " has no weight_map"));
  for (const auto& [name, file] : json["weight_map"].items()) {
    if (!file.is_string()) throw UserError(cat(index.string(), " names no file for '", name, "'"));
    files.insert(file.get<std::string>());
  }
  std::map<std::string, at::Tensor> all;
  for (const std::string& file : files) all.merge(read_tensors(folder / file).tensors);
  return all;
}

at::Tensor read_shard(const std::map<std::string, at::Tensor>& weights, const Model& model, const Shard& shard) {
  std::set<std::string> known;
  for (const Parameter& parameter : model.parameters()) {
    known.insert(parameter.name);
    const auto found = weights.find(parameter.name);
    if (found == weights.end()) throw UserError(cat("the weights have no tensor '", parameter.name, "'"));
    const at::Tensor& tensor = found->second;
    if (tensor.sizes() != at::IntArrayRef(parameter.shape) || !at::isFloatingType(tensor.scalar_type()))
      throw UserError(cat("tensor '", parameter.name, "' is ", tensor.scalar_type(), tensor.sizes(),
                          ", but the model's shape needs ", at::IntArrayRef(parameter.shape)));
  }
  for (const auto& [name, tensor] : weights) {
    // A tied head's copy, and tables older files carry that follow from the configuration.
    const bool spare =
        name == "lm_head.weight" || name.ends_with("rotary_emb.inv_freq") || name == "pos_embed.pos_embed";
    if (!known.contains(name) && !spare)
      throw UserError(cat("the weights hold '", name, "', which this model has no place for"));
  }
  at::Tensor values = at::empty({shard.size()}, at::kFloat);
  each_overlap(model, shard, [&](const Overlap& part) {
    const at::Tensor from = weights.at(part.parameter.name).flatten();
    const at::Tensor to = values.narrow(0, part.in_shard, part.count);
    to.copy_(from.narrow(0, part.in_parameter, part.count));
    if (!std::isfinite(to.abs().max().item<float>()))
      throw UserError(cat("tensor '", part.parameter.name, "' of the weights holds NaN or infinities: the training ",
                          "they come from went wrong, so go back to an earlier checkpoint"));
  });
  return values;
}

std::vector<NamedShape> tensor_shapes(const Model& model, at::ScalarType type) {
  std::vector<NamedShape> shapes;
  for (const Parameter& parameter : model.parameters()) shapes.push_back({parameter.name, type, parameter.shape});
  return shapes;
}

std::string config_text(const Model& model, at::ScalarType type, const Companions& companions) {
  nlohmann::json json = model.config();
  if (json.contains("_class_name")) return json.dump(2) + "\n";  // diffusers goes by the file
  json.update(nlohmann::json::parse(companions.ids));
  json["dtype"] = json["torch_dtype"] = type == at::kBFloat16 ? "bfloat16" : type == at::kHalf ? "float16" : "float32";
  return json.dump(2) + "\n";
}

std::string export_model(const Model& model, const fs::path& folder, at::ScalarType type,
                         const Companions& companions) {
  const bool is_new = !fs::exists(folder);
  if (!is_new && !fs::is_empty(folder))
    throw UserError(cat(folder.string(), " is there already and not empty: give a new folder"));
  const std::string name = kNames[model.config().contains("_class_name") ? 1 : 0];
  const fs::path file = folder / name;
  try {
    fs::create_directories(folder);
    for (const auto& [name, bytes] : companions.files) write_text(folder / name, bytes);
    write_text(folder / kModelFile, config_text(model, type, companions));
    int64_t offset = make_tensor_file(file, tensor_shapes(model, type));
    for (const Parameter& parameter : model.parameters()) {
      const at::Tensor values = parameter.value.detach().to(type).contiguous();
      write_at(file, offset, values);
      offset += static_cast<int64_t>(values.nbytes());
    }
  } catch (...) {  // half a model is no use, and would be in the way of the next try
    std::error_code ignored;
    for (const fs::path& one : {folder / kModelFile, file}) fs::remove(one, ignored);
    for (const auto& [name, bytes] : companions.files) fs::remove(folder / name, ignored);
    if (is_new) fs::remove(folder, ignored);
    throw;
  }
  return name;
}

}  // namespace startrail

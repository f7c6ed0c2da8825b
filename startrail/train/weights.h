// Weights in folders as Hugging Face has them: config.json beside model.safetensors, or several files and an index.
#pragma once

#include <filesystem>
#include <map>
#include <memory>
#include <string>

#include "startrail/train/model/llama.h"
#include "startrail/train/parameters.h"
#include "startrail/train/tensor_file.h"

namespace startrail {

// The model a folder's config.json describes, without its weights.
std::unique_ptr<Llama> open_model(const std::filesystem::path& folder);

// The same with its weights, in `type`, without gradients: for one device.
std::unique_ptr<Llama> load_model(const std::filesystem::path& folder, at::ScalarType type);

// Tensors by name, mapped. UserError when the folder holds none.
std::map<std::string, at::Tensor> open_weights(const std::filesystem::path& folder);

// The part `shard` of the model's row, float32. UserError, naming the tensor, for one that is missing, has another
// shape, or has no place in the model.
at::Tensor read_shard(const std::map<std::string, at::Tensor>& weights, const Model& model, const Shard& shard);

// Writes config.json and model.safetensors in `type` from the model's bound parameters into a new folder.
void export_model(const Model& model, const std::filesystem::path& folder, at::ScalarType type);

// config.json's text for weights of this type.
std::string config_text(const Model& model, at::ScalarType type);

// Names, shapes and one type of a model's parameters, in the order of the row.
std::vector<NamedShape> tensor_shapes(const Model& model, at::ScalarType type);

nlohmann::json read_json(const std::filesystem::path& file);

}  // namespace startrail

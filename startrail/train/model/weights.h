// Weights in folders as Hugging Face has them: config.json beside model.safetensors (diffusers:
// diffusion_pytorch_model.safetensors), or several files and an index.
#pragma once

#include <filesystem>
#include <map>
#include <memory>
#include <string>

#include "startrail/train/model/companions.h"
#include "startrail/train/model/dit.h"
#include "startrail/train/model/kinds.h"
#include "startrail/train/model/llama.h"
#include "startrail/train/model/parameters.h"
#include "startrail/train/store/run_files.h"
#include "startrail/train/store/tensor_file.h"

namespace startrail {

// What a folder's config.json describes.
ModelConfig read_config(const std::filesystem::path& folder);

enum class Which { mean, last };  // the running mean of the weights where a checkpoint has one, or the last weights

// Models with their weights, in `type`, without gradients: for one device. UserError for a folder of the other kind.
std::unique_ptr<Llama> load_llama(const std::filesystem::path& folder, at::ScalarType type, Which which = Which::mean);
std::unique_ptr<Dit> load_dit(const std::filesystem::path& folder, at::ScalarType type, Which which = Which::mean);
std::unique_ptr<Model> load_model(const std::filesystem::path& folder, at::ScalarType type, Which which = Which::mean);

// Tensors by name, mapped. UserError when the folder holds none.
std::map<std::string, at::Tensor> open_weights(const std::filesystem::path& folder);

// The part `shard` of the model's row, float32. UserError, naming the tensor, for one that is missing, has another
// shape, has no place in the model, or holds NaN or infinities in this part.
at::Tensor read_shard(const std::map<std::string, at::Tensor>& weights, const Model& model, const Shard& shard);

// Writes config.json, the weights in `type` from the model's bound parameters and what goes with them into a new
// folder; returns the name of the weights' file. What it wrote is gone again when it throws.
std::string export_model(const Model& model, const std::filesystem::path& folder, at::ScalarType type,
                         const Companions& companions = {});

// config.json's text for weights of this type, with the ids that go with a GPT.
std::string config_text(const Model& model, at::ScalarType type, const Companions& companions = {});

// Names, shapes and one type of a model's parameters, in the order of the row.
std::vector<NamedShape> tensor_shapes(const Model& model, at::ScalarType type);

}  // namespace startrail

#include "startrail/train/model/weights.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "startrail/base/file.h"
#include "startrail/base/testing.h"

namespace startrail {
namespace {

namespace fs = std::filesystem;
using Weights = std::map<std::string, at::Tensor>;

LlamaConfig shape(bool tied = false) {
  return {.vocabulary = 12,
          .dim = 6,
          .layers = 2,
          .heads = 2,
          .key_heads = 1,
          .head_dim = 4,
          .hidden = 10,
          .tied = tied,
          .rope = {.type = "linear", .theta = 500, .factor = 2}};
}

// A model with first values in float32.
std::unique_ptr<Llama> make_model(bool tied = false) {
  auto model = std::make_unique<Llama>(shape(tied));
  ParameterRow row(*model, at::kFloat);
  row.weights().copy_(initial_values(*model, 4, {0, row.size()}));
  return model;
}

Weights weights_of(const Model& model) {
  Weights weights;
  for (const Parameter& parameter : model.parameters()) weights[parameter.name] = parameter.value.detach();
  return weights;
}

void write_tensors(const fs::path& file, const Weights& weights) {
  std::vector<NamedShape> shapes;
  for (const auto& [name, tensor] : weights) shapes.push_back({name, tensor.scalar_type(), tensor.sizes().vec()});
  int64_t offset = make_tensor_file(file, shapes);
  for (const auto& [name, tensor] : weights) {
    write_at(file, offset, tensor);
    offset += static_cast<int64_t>(tensor.nbytes());
  }
}

// A folder with the model's config.json.
void write_config(const TempFolder& folder, bool tied = false) {
  folder.write("config.json", config_text(Llama(shape(tied)), at::kFloat));
}

// What loading these weights is refused with.
std::string refusal(const Weights& weights, bool tied = false) {
  const TempFolder folder;
  write_config(folder, tied);
  write_tensors(folder.path("model.safetensors"), weights);
  return error_of([&] { load_model(folder.path(), at::kFloat); });
}

void expect_equal(const Model& loaded, const Weights& expected) {
  ASSERT_EQ(loaded.parameters().size(), expected.size());
  for (const Parameter& parameter : loaded.parameters()) {
    EXPECT_EQ(parameter.value.scalar_type(), expected.at(parameter.name).scalar_type()) << parameter.name;
    EXPECT_TRUE(at::equal(parameter.value, expected.at(parameter.name))) << parameter.name;
    EXPECT_FALSE(parameter.value.requires_grad()) << parameter.name;
  }
}

TEST(Weights, AreLoadedAsTheyWereExported) {
  for (bool tied : {false, true}) {
    const TempFolder folder;
    const auto model = make_model(tied);
    export_model(*model, folder.path("new/folder"), at::kFloat);
    const auto loaded = load_model(folder.path("new/folder"), at::kFloat);
    EXPECT_EQ(loaded->config(), model->config());
    expect_equal(*loaded, weights_of(*model));
    EXPECT_EQ(weights_of(*loaded).contains("lm_head.weight"), !tied);
    EXPECT_EQ(dimensions(read_config(folder.path("new/folder"))).parameters, shape(tied).parameters());
  }
}

TEST(Weights, AreRoundedToTheTypeOfTheFileOrOfTheModel) {
  const TempFolder folder;
  const auto model = make_model();
  Weights narrow = weights_of(*model), rounded;
  for (auto& [name, tensor] : narrow) {
    tensor = tensor.to(at::kBFloat16);
    rounded[name] = tensor.to(at::kFloat);
  }
  export_model(*model, folder.path("narrow"), at::kBFloat16);
  EXPECT_EQ(read_json(folder.path("narrow/config.json")).at("torch_dtype"), "bfloat16");
  EXPECT_EQ(read_json(folder.path("narrow/config.json")).at("dtype"), "bfloat16");
  for (const auto& [name, tensor] : open_weights(folder.path("narrow"))) EXPECT_EQ(tensor.scalar_type(), at::kBFloat16);
  expect_equal(*load_model(folder.path("narrow"), at::kFloat), rounded);
  expect_equal(*load_model(folder.path("narrow"), at::kBFloat16), narrow);
  export_model(*model, folder.path("wide"), at::kFloat);
  EXPECT_EQ(read_json(folder.path("wide/config.json")).at("torch_dtype"), "float32");
  expect_equal(*load_model(folder.path("wide"), at::kBFloat16), narrow);
}

TEST(Weights, AreReadFromSeveralFiles) {
  const TempFolder folder;
  write_config(folder);
  const Weights weights = weights_of(*make_model());
  Weights parts[2];
  nlohmann::json index;
  int count = 0;
  for (const auto& [name, tensor] : weights) {
    const int part = count++ % 2;
    parts[part][name] = tensor;
    index["weight_map"][name] = cat("part-", part, ".safetensors");
  }
  for (int part : {0, 1}) write_tensors(folder.path(cat("part-", part, ".safetensors")), parts[part]);
  folder.write("model.safetensors.index.json", index.dump());
  expect_equal(*load_model(folder.path(), at::kFloat), weights);

  fs::remove(folder.path("part-1.safetensors"));
  EXPECT_EQ(error_of([&] { load_model(folder.path(), at::kFloat); }),
            folder.path("part-1.safetensors") + " cannot be opened: No such file or directory");
  folder.write("model.safetensors.index.json", "{}");
  EXPECT_EQ(error_of([&] { load_model(folder.path(), at::kFloat); }),
            folder.path("model.safetensors.index.json") + " has no weight_map");
  folder.write("model.safetensors.index.json", "{\"weight_map\"");
  EXPECT_NE(error_of([&] { load_model(folder.path(), at::kFloat); }).find("index.json is not whole JSON"),
            std::string::npos);
}

TEST(Weights, AreReadInShards) {
  const auto model = make_model();
  const Weights weights = weights_of(*model);
  std::vector<at::Tensor> flat;
  for (const Parameter& parameter : model->parameters()) flat.push_back(parameter.value.detach().flatten());
  const at::Tensor whole = at::cat(flat);
  for (int ranks : {1, 3, 8})
    for (int rank = 0; rank < ranks; ++rank) {
      const Shard shard = shard_of(whole.numel(), rank, ranks);
      EXPECT_TRUE(at::equal(read_shard(weights, *model, shard), whole.narrow(0, shard.begin, shard.size())))
          << rank << " of " << ranks;
    }
}

TEST(Weights, RefuseTensorsThatDoNotFitTheModel) {
  const std::string name = "model.layers.1.mlp.up_proj.weight";
  const auto model = make_model();
  Weights weights = weights_of(*model);
  EXPECT_EQ(refusal(weights), "no error");
  weights.erase(name);
  EXPECT_EQ(refusal(weights), "the weights have no tensor '" + name + "'");
  weights[name] = at::zeros({6, 10});  // transposed
  EXPECT_EQ(refusal(weights), "tensor '" + name + "' is Float[6, 10], but the model's shape needs [10, 6]");
  weights[name] = at::zeros({10, 6}, at::kInt);
  EXPECT_NE(refusal(weights).find("tensor '" + name + "' is Int[10, 6]"), std::string::npos) << refusal(weights);
  weights = weights_of(*model);
  weights["model.layers.2.mlp.up_proj.weight"] = at::zeros({10, 6});
  EXPECT_EQ(refusal(weights),
            "the weights hold 'model.layers.2.mlp.up_proj.weight', which this model has no place for");
  // Tables that older files carry.
  weights = weights_of(*model);
  weights["model.layers.0.self_attn.rotary_emb.inv_freq"] = at::zeros({2});
  EXPECT_EQ(refusal(weights), "no error");
}

TEST(Weights, OfATiedModelMayHaveTheHeadOrNot) {
  const Weights untied = weights_of(*make_model());
  ASSERT_TRUE(untied.contains("lm_head.weight"));
  Weights tied = untied;
  tied.erase("lm_head.weight");
  EXPECT_EQ(refusal(untied, /*tied=*/true), "no error");
  EXPECT_EQ(refusal(tied, /*tied=*/true), "no error");
  EXPECT_EQ(refusal(tied, /*tied=*/false), "the weights have no tensor 'lm_head.weight'");
  const TempFolder folder;
  write_config(folder, /*tied=*/true);
  write_tensors(folder.path("model.safetensors"), untied);
  expect_equal(*load_model(folder.path(), at::kFloat), tied);
}

TEST(Weights, AreExportedOnlyIntoANewFolder) {
  const TempFolder folder;
  const auto model = make_model();
  folder.write("used/notes.txt", "mine");
  EXPECT_EQ(error_of([&] { export_model(*model, folder.path("used"), at::kFloat); }),
            folder.path("used") + " is there already and not empty: give a new folder");
  EXPECT_FALSE(fs::exists(folder.path("used/config.json")));
  fs::create_directory(folder.path("empty"));
  export_model(*model, folder.path("empty"), at::kFloat);
  EXPECT_TRUE(fs::exists(folder.path("empty/model.safetensors")));
}

TEST(Weights, RefuseFoldersWithoutAModel) {
  const TempFolder folder;
  const auto refused = [&] { return error_of([&] { load_model(folder.path(), at::kFloat); }); };
  EXPECT_EQ(refused(),
            folder.path() +
                " holds no model: it has neither config.json (and model.safetensors) nor a run's complete checkpoint");
  write_config(folder);
  EXPECT_NE(refused().find(folder.path() + " holds no weights: it has neither model.safetensors nor"),
            std::string::npos);
  folder.write("config.json", "{\"model_type\": ");
  EXPECT_NE(refused().find(folder.path("config.json") + " is not whole JSON"), std::string::npos);
  folder.write("config.json", "{\"model_type\": \"gpt2\"}");
  EXPECT_EQ(refused(), folder.path("config.json") + " has model_type 'gpt2'; supported: llama, qwen2, qwen3, mistral");
  EXPECT_EQ(error_of([&] { read_json(folder.path("none.json")); }),
            folder.path("none.json") + " cannot be opened as a file");
}

}  // namespace
}  // namespace startrail

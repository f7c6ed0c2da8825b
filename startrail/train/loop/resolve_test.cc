#include "startrail/train/loop/resolve.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "startrail/base/testing.h"

namespace startrail {
namespace {

// "model.dim=64 train.seed=5".
Overrides overrides_of(const std::string& sets) {
  TrainConfig defaults;
  Overrides overrides;
  for (const std::string& one : split(sets, ' ')) add_override(overrides, settings_of(defaults), one);
  return overrides;
}

// A folder's model, with a run that goes on from it or a new one that starts.
Base base_of(const ModelConfig& model, bool resumes) {
  return {.config = {}, .model = model, .where = "FOLDER", .resumes = resumes};
}

TEST(Resolve, ANewModelIsThePresetWithWhatWasSet) {
  const Resolved plain = resolve({});
  EXPECT_EQ(dimensions(plain.model).parameters, llama_preset("tiny").parameters());
  EXPECT_EQ(plain.config.train.tokens, 4096);
  EXPECT_EQ(plain.config.run.folder, "runs/gpt");
  const Resolved dit = resolve({}, overrides_of("model.preset=dit-tiny model.height=64 run.folder=here"));
  EXPECT_EQ(std::get<DitConfig>(dit.model).size[1], 64);
  EXPECT_EQ(dit.config.train.tokens, std::get<DitConfig>(dit.model).tokens());
  EXPECT_EQ(dit.config.run.folder, "here");
  EXPECT_EQ(dit.config.model.height, 64);
  EXPECT_EQ(dit.config.model.width, 0);  // left open, as it was given
}

TEST(Resolve, WhatIsSavedIsTheModelItself) {
  const Resolved given = resolve({}, overrides_of("model.dim=64 model.heads=8"));
  const TrainConfig saved = with_model(given.config, given.model);
  EXPECT_EQ(saved.model.kv_heads, 8);
  EXPECT_EQ(saved.model.head_dim, 8);
  EXPECT_EQ(saved.model.layers, llama_preset("tiny").layers);
  // Read again it comes to the same, also on top of the model.
  EXPECT_EQ(dimensions(resolve({.config = saved}).model).parameters, dimensions(given.model).parameters);
  TrainConfig written = saved;
  const Overrides all = text_overrides(settings_of(written), to_toml(settings_of(written)), "saved");
  EXPECT_EQ(dimensions(resolve(base_of(given.model, true), all).model).parameters, dimensions(given.model).parameters);
}

TEST(Resolve, AFoldersModelChangesInItsRotaryPositionsOnly) {
  LlamaConfig held = llama_preset("gpt-125m");
  held.rope.original_tokens = static_cast<double>(held.max_tokens);  // as config.json is read
  EXPECT_EQ(dimensions(model_config(with_model({}, held))).parameters, held.parameters());
  const auto changed = [&](const std::string& sets, bool resumes) {
    const std::string longer = cat(sets, " train.tokens=", 3 * held.max_tokens);
    return std::get<LlamaConfig>(resolve(base_of(held, resumes), overrides_of(longer)).model);
  };
  const LlamaConfig same = changed("model.dim=768 model.layers=0 model.tied=preset", true);
  EXPECT_EQ(same.parameters(), held.parameters());
  EXPECT_EQ(same.max_tokens, 3 * held.max_tokens);
  const LlamaConfig longer = changed("model.rope_scaling=yarn model.rope_factor=4", false);
  EXPECT_EQ(longer.rope.type, "yarn");
  EXPECT_EQ(longer.rope.factor, 4);
  EXPECT_EQ(longer.rope.original_tokens, static_cast<double>(held.max_tokens));
  EXPECT_EQ(longer.parameters(), held.parameters());
  const auto refused = [&](const std::string& sets, bool resumes) { return error_of([&] { changed(sets, resumes); }); };
  EXPECT_EQ(
      refused("model.dim=64", false),
      "model.dim = 64 is not what FOLDER has, 768: leave it out; of a model's settings only rope_... can be changed");
  EXPECT_EQ(refused("model.tied=false", true), "model.tied = \"false\" is not what FOLDER has, \"true\": leave it out");
  EXPECT_EQ(refused("model.rope_theta=5e5", true),
            "model.rope_theta = 5e+05 is not what FOLDER has, 10000.0: leave it out");
  EXPECT_EQ(refused("model.preset=gpt-1b", false),
            "model.preset gpt-1b is not what FOLDER has: leave it out, the shape comes from there");
}

TEST(Resolve, AFoldersKindStays) {
  const LlamaConfig held{.kind = "qwen3", .window = 7, .windowed = {true, false, true, false}};
  const auto kept = [&](const std::string& sets, bool resumes) {
    return to_json(std::get<LlamaConfig>(resolve(base_of(held, resumes), overrides_of(sets)).model));
  };
  EXPECT_EQ(kept("", true), to_json(held));
  EXPECT_EQ(kept("model.kind=qwen3", true), to_json(held));
  EXPECT_EQ(kept("model.rope_scaling=linear model.rope_factor=2", false)["layer_types"], to_json(held)["layer_types"]);
  EXPECT_EQ(error_of([&] { kept("model.kind=llama", false); }),
            "model.kind = \"llama\" is not what FOLDER has, \"qwen3\": leave it out; of a model's settings only "
            "rope_... can be changed");
  // What is saved does not come to another kind without the folder.
  EXPECT_EQ(with_model({}, held).model.kind, "qwen3");
  EXPECT_EQ(error_of([&] { resolve({.config = with_model({}, held)}); }),
            "model.kind qwen3 is not for new models, only llama: give a folder of a qwen3 with --from");
}

TEST(Resolve, AFoldersDitChangesInItsObjectiveOnly) {
  DitConfig held = dit_preset("dit-tiny");
  held.classes = 3;
  const auto changed = [&](const std::string& sets, bool resumes) {
    return std::get<DitConfig>(resolve(base_of(held, resumes), overrides_of(sets)).model);
  };
  EXPECT_EQ(changed("", true).classes, 3);
  EXPECT_EQ(changed("model.classes=-1 model.positions=preset", true).classes, 3);  // left open
  EXPECT_EQ(changed("model.objective=ddpm", false).objective, "ddpm");
  const auto refused = [&](const std::string& sets, bool resumes) { return error_of([&] { changed(sets, resumes); }); };
  EXPECT_EQ(refused("model.objective=ddpm", true),
            "model.objective = \"ddpm\" is not what FOLDER has, \"flow\": leave it out");
  EXPECT_EQ(refused("model.classes=0", false),
            "model.classes = 0 is not what FOLDER has, 3: leave it out; of a model's settings only objective can be "
            "changed");
  EXPECT_EQ(refused("model.vocabulary=300", false),
            "model.vocabulary is for a GPT, but model.preset dit-tiny is a DiT: leave it out");
}

TEST(Resolve, SaysWhatWasSetToSomethingElse) {
  TrainConfig before;
  before.data.validation = 0.25;
  const auto changed = [&](const std::string& sets) {
    const Overrides overrides = overrides_of(sets);
    return changes("data.", overrides, resolve({.config = before}, overrides).config, before);
  };
  EXPECT_EQ(changed("data.validation=0.5 train.seed=4"), "data.validation is 0.5 and was 0.25");
  EXPECT_EQ(changed("data.validation=0.25 data.path=here"), "data.path is \"here\" and was \"\"");
  EXPECT_EQ(changed("train.seed=4"), "");
}

TEST(Overrides, AreCheckedWhereverTheyComeFrom) {
  TrainConfig config;
  const Settings settings = settings_of(config);
  set_values(settings, {{"train.clip", int64_t{2}}, {"data.documents", true}, {"model.preset", "tiny"}});
  EXPECT_EQ(config.train.clip, 2.0);
  EXPECT_TRUE(config.data.documents);
  const auto refused = [&](const Overrides& overrides) { return error_of([&] { set_values(settings, overrides); }); };
  EXPECT_NE(refused({{"train.clip", true}}).find("train.clip = true is not valid"), std::string::npos);
  EXPECT_NE(refused({{"train.batch", int64_t{0}}}).find("train.batch = 0 is not valid"), std::string::npos);
  EXPECT_NE(refused({{"train.batches", int64_t{1}}}).find("the nearest is train.batch"), std::string::npos);
}

}  // namespace
}  // namespace startrail

#include "startrail/train/model/dit_config.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "startrail/base/testing.h"
#include "startrail/train/model/dit.h"
#include "startrail/train/model/parameters.h"

namespace startrail {
namespace {

std::string refusal(const std::function<void(DitConfig&)>& change) {
  DitConfig config;
  change(config);
  return error_of([&] { check_config(config); });
}

TEST(DitConfig, PresetsHaveThePublishedSizes) {
  // Parameters of facebookresearch's models of 1,000 classes, where time and class are embedded once; here in every
  // block, as diffusers has it.
  const DitConfig xl = dit_preset("dit-xl/2");
  EXPECT_EQ(xl.layers, 28);
  EXPECT_EQ(xl.dim(), 1152);
  EXPECT_EQ(xl.heads, 16);
  EXPECT_EQ(xl.tokens(), 256);
  const DitConfig one = dit_preset("dit-1b");
  EXPECT_EQ(one.layers, 24);
  EXPECT_EQ(one.heads, 24);
  EXPECT_EQ(one.dim(), 1536);
  EXPECT_EQ(dit_preset("dit-s/2").dim(), 384);
  EXPECT_EQ(dit_preset("dit-b/2").dim(), 768);
  EXPECT_EQ(error_of([] { dit_preset("dit-m/2"); }),
            "preset 'dit-m/2' is not known; valid: dit-tiny, dit-s/2, dit-b/2, dit-xl/2, dit-1b");
}

TEST(DitConfig, CountsTheParametersThatAModelHas) {
  for (int64_t classes : {0, 7})
    for (int64_t frames : {1, 4}) {
      DitConfig config;
      config.classes = classes;
      config.size[0] = frames;
      config.patch = {frames > 1 ? 2 : 1, 4, 2};
      config.out_channels = 2 * config.channels;
      EXPECT_EQ(config.parameters(), count_parameters(Dit(config))) << classes << " " << frames;
    }
}

TEST(DitConfig, IsReadBackAsItWasWritten) {
  DitConfig plain;
  plain.classes = 10;
  DitConfig video = plain;
  video.size = {8, 32, 48};
  video.patch = {2, 4, 8};
  video.positions = "rotary";
  DitConfig published = plain;
  published.objective = "ddpm";
  published.out_channels = 6;
  EXPECT_TRUE(plain.is_plain());
  EXPECT_FALSE(video.is_plain());
  EXPECT_FALSE(DitConfig{}.is_plain());  // no classes
  for (const DitConfig& config : {plain, video, published, DitConfig{}}) {
    const nlohmann::json json = to_json(config);
    const DitConfig again = dit_from_json(json, "config.json");
    EXPECT_EQ(to_json(again), json);
    EXPECT_EQ(again.size, config.size);
    EXPECT_EQ(again.patch, config.patch);
    EXPECT_EQ(again.objective, config.objective);
    EXPECT_EQ(json["_class_name"], config.is_plain() ? "DiTTransformer2DModel" : "StarTrailDiT");
  }
  EXPECT_FALSE(to_json(published).contains("objective"));
}

TEST(DitConfig, RefusesWhatItCannotBe) {
  EXPECT_EQ(refusal([](DitConfig& c) { c.size[1] = 30; }), "model patch_height 4 must divide height 30");
  EXPECT_EQ(refusal([](DitConfig& c) { c.layers = 0; }), "model layers 0 must be 1 or more, and at most 2^20");
  EXPECT_EQ(refusal([](DitConfig& c) { c.positions = "learned"; }),
            "model positions 'learned' is not known; valid: sine, rotary");
  EXPECT_EQ(refusal([](DitConfig& c) { c.head_dim = 24, c.heads = 1, c.size[0] = 4; }),
            "model dim (heads x head_dim) 24 must be a multiple of 16 to hold sine positions of three axes");
  EXPECT_EQ(refusal([](DitConfig& c) { c.head_dim = 6, c.positions = "rotary"; }),
            "model head_dim 6 must be a multiple of 4 to hold rotary positions of two axes");
  EXPECT_EQ(refusal([](DitConfig& c) { c.out_channels = 4; }),
            "model out_channels 4 must be channels 3 or twice as many");
  const auto read = [](const char* key, const nlohmann::json& value) {
    nlohmann::json json{{"_class_name", "DiTTransformer2DModel"}};
    json[key] = value;
    return error_of([&] { dit_from_json(json, "config.json"); });
  };
  EXPECT_EQ(read("num_layers", 2), "no error");
  EXPECT_EQ(read("dropout", 0.1), "config.json: dropout 0.1 is not supported, only 0.0");
  EXPECT_EQ(read("activation_fn", "geglu"),
            "config.json: activation_fn \"geglu\" is not supported, only \"gelu-approximate\"");
  EXPECT_EQ(read("num_layers", "two"), "config.json: 'num_layers' is \"two\", which is not of the right type");
  // The name that published folders have.
  EXPECT_EQ(error_of([] {
              dit_from_json(
                  {{"_class_name", "Transformer2DModel"}, {"norm_type", "ada_norm_zero"}, {"out_channels", 8}},
                  "config.json");
            }),
            "no error");
  EXPECT_NE(read("_class_name", "Transformer2DModel"), "no error");
  EXPECT_EQ(read("_class_name", "UNet2DModel"),
            "config.json has _class_name 'UNet2DModel'; supported: DiTTransformer2DModel, StarTrailDiT");
}

}  // namespace
}  // namespace startrail

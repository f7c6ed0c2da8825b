#include "startrail/train/model/companions.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "startrail/base/testing.h"

namespace startrail {
namespace {

using nlohmann::json;
using Ids = std::set<int64_t>;

constexpr const char* kTokenizer = R"({"added_tokens": [{"id": 7, "content": "<end>"}, {"id": 9, "content": "<start>"}],
                                       "model": {"vocab": {"a": 1, "<learned>": 3}}})";

std::vector<std::string> names_of(const Companions& all) {
  std::vector<std::string> names;
  for (const auto& [name, bytes] : all.files) names.push_back(name);
  return names;
}

TEST(Companions, AreThoseOfAModelsFolder) {
  const TempFolder folder;
  folder.write("config.json", R"({"bos_token_id": null, "eos_token_id": [7, 8], "vocab_size": 10})");
  EXPECT_EQ(json::parse(make_companions(folder.path()).ids), (json{{"eos_token_id", {7, 8}}}));
  EXPECT_EQ(names_of(make_companions(folder.path())), (std::vector<std::string>{"generation_config.json"}));
  EXPECT_EQ(end_ids(folder.path()), (Ids{7, 8}));
  folder.write("tokenizer.json", kTokenizer);
  folder.write("merges.txt", "a b");
  folder.write("notes.txt", "not the model's");
  folder.write("generation_config.json", R"({"eos_token_id": 8, "top_p": 0.9})");
  folder.write("tokenizer_config.json", R"({"bos_token": {"content": "<start>"}, "eos_token": "<learned>"})");
  const Companions all = make_companions(folder.path());
  EXPECT_EQ(names_of(all), (std::vector<std::string>{"generation_config.json", "merges.txt", "tokenizer.json",
                                                     "tokenizer_config.json"}));
  EXPECT_EQ(all.files.at("tokenizer.json"), kTokenizer);
  EXPECT_EQ(json::parse(all.files.at("generation_config.json"))["top_p"], 0.9);
  EXPECT_EQ(json::parse(all.ids), (json{{"bos_token_id", 9}, {"eos_token_id", {7, 8}}}));  // its own come first
  EXPECT_EQ(end_ids(folder.path()), (Ids{8}));
}

TEST(Companions, OfANewModelAreThoseOfItsTokens) {
  const TempFolder folder;
  folder.write("data/tokenizer.json", kTokenizer);
  folder.write("data/generation_config.json", "not a model's");
  const Companions all = make_companions("", folder.path("data"), 7);
  EXPECT_EQ(json::parse(all.ids), (json{{"eos_token_id", 7}}));
  EXPECT_EQ(json::parse(all.files.at("generation_config.json")), (json{{"eos_token_id", 7}}));
  EXPECT_EQ(json::parse(all.files.at("tokenizer_config.json")),
            (json{{"eos_token", "<end>"}, {"tokenizer_class", "PreTrainedTokenizerFast"}}));
  EXPECT_EQ(json::parse(make_companions("", folder.path("data"), 3).files.at("tokenizer_config.json"))["eos_token"],
            "<learned>");
  EXPECT_TRUE(make_companions("", "").files.empty());
  // A model's own tokenizer is not replaced.
  folder.write("model/config.json", "{}");
  folder.write("model/tokenizer.json", R"({"added_tokens": []})");
  const Companions both = make_companions(folder.path("model"), folder.path("data"), 7);
  EXPECT_EQ(both.files.at("tokenizer.json"), R"({"added_tokens": []})");
  EXPECT_EQ(json::parse(both.ids), (json{{"eos_token_id", 7}}));
  folder.write("model/tokenizer.json", "{");
  const auto refusal = [&] { return error_of([&] { make_companions(folder.path("model")); }); };
  EXPECT_EQ(refusal(), cat(folder.path("model/tokenizer.json"), " is not whole JSON: it cannot be read beyond byte 2"));
  folder.write("model/tokenizer.json", R"({"added_tokens": 3, "model": []})");
  folder.write("model/tokenizer_config.json", "[1]");
  EXPECT_EQ(refusal(), cat(folder.path("model/tokenizer_config.json"), " holds no JSON object"));
  folder.write("model/tokenizer_config.json", R"({"eos_token": {"content": 7}, "bos_token": "<begin>"})");
  EXPECT_EQ(refusal(), "no error");
  EXPECT_EQ(end_ids(folder.path("model")), Ids());
}

}  // namespace
}  // namespace startrail

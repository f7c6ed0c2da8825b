// From text to a model that others load: training on text and on tokens, and what goes with a model's weights.
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "startrail/base/random.h"
#include "startrail/train/data/tokens/testing.h"
#include "startrail/train/loop/checkpoint.h"
#include "tests/command.h"
#include "tests/python.h"

namespace startrail {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

class Tokens : public testing::Test {
 protected:
  json run(const std::string& arguments) const {
    const Ended ended = run_command(arguments + " --json");
    EXPECT_EQ(ended.code, 0) << arguments << "\n" << ended.text;
    return json::parse(ended.text, nullptr, false);
  }
  std::string refusal(const std::string& arguments) const {
    const Ended ended = run_command(arguments);
    EXPECT_EQ(ended.code, 2) << arguments << "\n" << ended.text;
    return ended.text;
  }
  // A small model on the tokens in this folder, whose run goes into another.
  std::string train(const std::string& data, const std::string& run, int steps, const std::string& more = "") const {
    return cat(
        "train --set data.path=", folder_.path(data), " --set run.folder=", folder_.path(run),
        " --set model.layers=1 --set model.dim=16 --set model.heads=2 --set model.hidden=32 --set model.tied=true",
        " --set train.tokens=32 --set train.precision=float32 --set train.warmup=0",
        " --set train.schedule=constant --set data.validation=0.1 --set validate.every=0 --set train.steps=", steps,
        " ", more);
  }

  TempFolder folder_;
};

TEST_F(Tokens, ALargeVocabularyGoesFromTextToTransformers) {
  python("tokens_reference.py make " + folder_.path());
  const std::string run_folder = folder_.path("run"), out = folder_.path("out");
  const std::string tokenizer = "--tokenizer " + folder_.path("tokenizer");
  const json whole = run(train("text", "whole", 6, tokenizer)),
             first = run(train("text", "run", 3, tokenizer + " --set run.samples=false"));
  const json sample = json::parse(std::ifstream(folder_.path("whole/samples/step-00000006.json")));
  EXPECT_FALSE(sample["prompt"].get<std::string>().empty());
  EXPECT_TRUE(sample.contains("text"));
  EXPECT_FALSE(fs::exists(run_folder + "/samples"));
  const json rest = run(cat("train --resume ", run_folder, " --set train.steps=6"));
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(first["losses"][i], whole["losses"][i]);
    EXPECT_EQ(rest["losses"][i], whole["losses"][3 + i]);
  }
  EXPECT_LT(whole["losses"][5], whole["losses"][0]);
  EXPECT_NE(refusal(cat("train --resume ", run_folder, " ", tokenizer)).find("leave out --tokenizer"),
            std::string::npos);
  EXPECT_EQ(json::parse(std::ifstream(run_folder + "/tokens/tokens.json"))["type"], "uint32");
  EXPECT_EQ(json::parse(std::ifstream(find_checkpoint(run_folder) / "config.json"))["vocab_size"], 128'256);

  const json texts = run(cat("sample --checkpoint ", run_folder, " --prompt 'the ring' --tokens 4 --temperature 0"));
  ASSERT_EQ(texts.size(), 1u);
  EXPECT_GT(texts[0]["prompt_ids"][0], 65'535);
  EXPECT_EQ(run_command(cat("export --checkpoint ", run_folder, " --out ", out)).code, 0);
  run(cat("tokenize ", tokenizer, " --out ", folder_.path("other"), " ", folder_.path("other.jsonl")));
  const json measured = run(cat("evaluate --checkpoint ", out, " --data ", folder_.path("other"), " --tokens 32"));
  python(cat("tokens_reference.py check ", folder_.path(), " ", out, " ", measured["loss"].dump(), " 32 > ",
             folder_.path("written")));
  json written;
  std::ifstream(folder_.path("written")) >> written;
  json expected = texts[0]["prompt_ids"];
  for (const json& id : texts[0]["ids"]) expected.push_back(id);
  EXPECT_EQ(written, expected);

  // What a folder has goes on with a run that starts from it.
  fs::remove(folder_.path("out/tokenizer_config.json"));
  folder_.write("out/tokenizer_config.json", R"({"tokenizer_class": "PreTrainedTokenizerFast", "kept": 1})");
  const std::string tuning = cat(
      "train --from ", out, " --set data.path=", folder_.path("other"),
      " --set train.tokens=32 --set train.steps=1 --set run.samples=false --set run.folder=", folder_.path("tuned"));
  folder_.write("other/tokenizer.json", "{}");
  for (const std::string& command : {tuning, cat("evaluate --checkpoint ", out, " --data ", folder_.path("other"))})
    EXPECT_NE(refusal(command).find("were made with another tokenizer than that of " + out), std::string::npos);
  const std::string early = cat("train --from ", out, " --tokenizer ", folder_.path("other"),
                                " --set data.path=", folder_.path("text"), " --set run.folder=", folder_.path("early"));
  EXPECT_NE(refusal(early).find("is another tokenizer than that of " + out), std::string::npos);
  EXPECT_FALSE(fs::exists(folder_.path("early"))) << "said before the text is tokenized";
  fs::copy_file(folder_.path("tokenizer/tokenizer.json"), folder_.path("other/tokenizer.json"),
                fs::copy_options::overwrite_existing);
  run(tuning);
  const fs::path checkpoint = find_checkpoint(folder_.path("tuned"));
  EXPECT_EQ(json::parse(std::ifstream(checkpoint / "tokenizer_config.json"))["kept"], 1);
  EXPECT_EQ(json::parse(std::ifstream(checkpoint / "config.json"))["eos_token_id"], 128'001);
  verify_checkpoint(checkpoint);
  std::ofstream(checkpoint / "tokenizer.json", std::ios::app) << " ";
  EXPECT_NE(error_of([&] { verify_checkpoint(checkpoint); }).find("tokenizer.json has "), std::string::npos);
}

TEST_F(Tokens, LossesDoNotDependOnTheirWidth) {
  std::vector<std::vector<uint32_t>> documents;
  for (uint64_t i = 0; i < 200; ++i) {
    documents.emplace_back();
    for (uint64_t k = 0; k < mix(i, 0) % 40 + 1; ++k) documents.back().push_back(static_cast<uint32_t>(mix(i, k) % 99));
  }
  TokenFolder told{
      .type = "uint16", .vocabulary = 100, .end_token = 99, .tokenizer = "", .tokenizer_hash = "", .files = {}};
  add_documents(folder_, "narrow", "a.bin", documents, told);
  told.type = "uint32";
  add_documents(folder_, "wide", "a.bin", documents, told);
  const json narrow = run(train("narrow", "one", 20)), wide = run(train("wide", "two", 20));
  EXPECT_EQ(narrow["losses"].size(), 20u);
  EXPECT_EQ(narrow["losses"], wide["losses"]);
  EXPECT_EQ(narrow["validation"], wide["validation"]);
  const std::string said = run_command(train("wide", "three", 1, "--dry-run")).text;
  EXPECT_NE(said.find(", vocabulary 100, "), std::string::npos) << said;
  EXPECT_NE(said.find(" in 200 documents; held out for validation: "), std::string::npos) << said;
  EXPECT_NE(refusal(train("wide", "four", 1, "--set data.end_token=5")).find("data.end_token is 5, but "),
            std::string::npos);
  EXPECT_NE(refusal(train("wide", "four", 1, "--set model.vocabulary=50")).find("but the model has 50: tokenize"),
            std::string::npos);
}

// Earlier versions filled the share with files in an order, so that adding some moved others.
TEST_F(Tokens, ARunThatHeldOutOtherDocumentsSaysSo) {
  for (int i = 0; i < 30; ++i) folder_.write(cat("text/", i), std::string(100, static_cast<char>('a' + i % 26)));
  run(train("text", "run", 1));
  const fs::path file = find_checkpoint(folder_.path("run")) / "training.json";
  json state = json::parse(std::ifstream(file));
  ASSERT_TRUE(state["data"].get<std::string>().ends_with(" files"));
  state["data"] = cat(std::string(32, '0'), " ", std::string(32, '1'));
  state.erase("checksum");  // as such versions wrote it
  std::ofstream(file) << state;
  const std::string resume = cat("train --resume ", folder_.path("run"), " --set train.steps=2 ");
  EXPECT_NE(refusal(resume).find("is of a version that held out other files for validation, or the data"),
            std::string::npos);
  run(resume + "--set data.allow_changed=true");
}

TEST_F(Tokens, LongerThanTheModelsPositionsIsSaid) {
  folder_.write("a.txt", std::string(5000, 'x'));
  run(train("a.txt", "run", 1));
  const std::string from = cat("train --from ", folder_.path("run"), " --set data.path=", folder_.path("a.txt"),
                               " --set run.folder=", folder_.path("two"), " --dry-run --set train.tokens=");
  const std::string warning = "warning: train.tokens 33 goes past the 32 positions of ";
  EXPECT_NE(run_command(from + "33").text.find(warning), std::string::npos);
  EXPECT_EQ(run_command(from + "32").text.find("warning"), std::string::npos);
  EXPECT_EQ(run_command(from + "33 --set model.rope_scaling=linear --set model.rope_factor=2").text.find("warning"),
            std::string::npos);
  const std::string sample = cat("sample --checkpoint ", folder_.path("run"), " --prompt xxxx --tokens ");
  EXPECT_NE(run_command(sample + "29").text.find("warning: a prompt of 4 tokens and 29 more go past the 32 positions"),
            std::string::npos);
  EXPECT_EQ(run_command(sample + "28").text.find("warning"), std::string::npos);
}

TEST_F(Tokens, PromptsComeFromManyPlaces) {
  folder_.write("a.txt", std::string(5000, 'x'));
  run(train("a.txt", "run", 1));
  const std::string sample = cat("sample --checkpoint ", folder_.path("run"), " --tokens 3 --temperature 0 ");
  const std::string file = folder_.write("prompt", "two\nlines\n");
  const json texts = run(cat(sample, "--prompt one --prompt 'o t' --prompt-file ", file));
  ASSERT_EQ(texts.size(), 3u);
  EXPECT_EQ(texts[0]["prompt"], "one");
  EXPECT_EQ(texts[1]["prompt_ids"], (json{'o', ' ', 't'}));
  EXPECT_EQ(texts[2]["prompt"], "two\nlines");
  for (const json& text : texts) EXPECT_EQ(text["ids"].size(), 3u);
  // Each is what it would be alone.
  EXPECT_EQ(run(sample + "--prompt 'o t'")[0], texts[1]);
  const std::string both = run_command(sample + "--prompt one --prompt two").text;
  EXPECT_EQ(both.find("one"), 0u);
  EXPECT_NE(both.find("\n\ntwo"), std::string::npos);
  const Ended piped = run_process(cat(sample, "--prompt - < ", file));
  EXPECT_EQ(piped.text.find("two\nlines"), 0u) << piped.text;
  EXPECT_NE(refusal(cat(sample, "--prompt-file ", folder_.path("none"))).find("cannot be opened as a file"),
            std::string::npos);
}

}  // namespace
}  // namespace startrail

// `startrail tokenize` as users meet it: the tokens of Hugging Face's tokenizers, kills, and what is said.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "startrail/base/testing.h"
#include "startrail/train/data/tokenize/testing.h"
#include "tests/command.h"
#include "tests/tokenize.h"

namespace startrail {
namespace {

using nlohmann::json;

TEST(TokenizeCommand, GivesTheTokensOfHuggingFace) { expect_reference_tokens(200'000); }

TEST(TokenizeCommand, KilledItGoesOn) { kill_and_tokenize(3); }

TEST(TokenizeCommand, SaysWhatItDid) {
  const TempFolder folder;
  const std::string tokenizer = folder.write("small/tokenizer.json", small_tokenizer());
  folder.write("text/a.jsonl", "{\"text\": \"the one\"}\nno\n{\"text\": \"the two\"}\n");
  folder.write("text/b.txt", "three");
  const std::string command =
      cat("tokenize --tokenizer ", tokenizer, " --out ", folder.path("out"), " ", folder.path("text"));
  Ended ended = run_command(command);
  EXPECT_EQ(ended.code, 2);
  EXPECT_EQ(ended.text, cat("startrail: ", folder.path("text/a.jsonl"),
                            " line 2 is not JSON (at byte 2); --on-error skip leaves such documents out\n"));
  ended = run_command(command + " --on-error skip");
  EXPECT_EQ(ended.code, 0);
  for (const std::string& part :
       {cat("skipped: ", folder.path("text/a.jsonl"), " line 2 is not JSON"), std::string("2 files of text"),
        std::string("documents         3\n"), std::string("skipped           1 document "),
        std::string("tokens            17 (uint16), in 1 file"), std::string("bytes per token   1.12"),
        std::string("tokenizer         small, vocabulary 260, end token 259"),
        cat("train --set data.path=", folder.path("out"))})
    EXPECT_NE(ended.text.find(part), std::string::npos) << part << " in\n" << ended.text;
  ended = run_command(command + " --on-error skip --json");
  const json result = json::parse(ended.text);
  EXPECT_EQ(result["was_done"], true);
  EXPECT_EQ(result["documents"], 3);
  EXPECT_EQ(result["tokens"], 17);
  EXPECT_EQ(text_of_tokens(folder.path("out")), "the one|the two|three|");

  ended = run_command(cat("tokenize --out ", folder.path("other"), " ", folder.path("text")));
  EXPECT_EQ(ended.code, 2);
  EXPECT_NE(ended.text.find("--tokenizer is required"), std::string::npos) << ended.text;
  folder.write("other.json", R"({"model": {"type": "Unigram"}, "pre_tokenizer": null, "decoder": null})");
  ended = run_command(cat("tokenize --tokenizer ", folder.path("other.json"), " --out o ", folder.path("text")));
  EXPECT_EQ(ended.text,
            cat("startrail: ", folder.path("other.json"), ": model Unigram is not supported: only BPE is\n"));
}

}  // namespace
}  // namespace startrail

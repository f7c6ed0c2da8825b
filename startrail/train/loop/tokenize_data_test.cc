#include "startrail/train/loop/tokenize_data.h"

#include <gtest/gtest.h>

#include "startrail/base/testing.h"
#include "startrail/train/data/tokenize/testing.h"

namespace startrail {
namespace {

TEST(TokenizeData, PutsTheTokensIntoTheRun) {
  const TempFolder folder;
  folder.write("small/tokenizer.json", small_tokenizer());
  folder.write("text/a.txt", "the one");
  folder.write("text/run/metrics.jsonl", "written by the run");  // which lies in the data
  folder.write("held.jsonl", "{\"text\": \"two\"}");
  TrainConfig config;
  config.data.path = folder.path("text");
  config.data.validation_path = folder.path("held.jsonl");
  config.run.folder = folder.path("text/run");
  tokenize_data(config, folder.path("small"));
  const TrainConfig made = with_tokens(config);
  EXPECT_EQ(made.data.path, folder.path("text/run/tokens"));
  EXPECT_EQ(text_of_tokens(made.data.path), "the one|");
  EXPECT_EQ(text_of_tokens(made.data.validation_path), "two|");

  folder.write("text/b.txt", "three");
  tokenize_data(config, folder.path("small"));
  EXPECT_EQ(text_of_tokens(made.data.path), "the one|three|");
  tokenize_data(made, folder.path("small"));  // a run that goes on
  EXPECT_EQ(with_tokens(made).data.path, made.data.path);
}

TEST(TokenizeData, RefusesWhatIsNotText) {
  const TempFolder folder;
  folder.write("small/tokenizer.json", small_tokenizer());
  tokenize({.paths = {folder.write("a.txt", "a")}, .tokenizer = folder.path("small"), .out = folder.path("tokens")});
  TrainConfig config;
  config.run.folder = folder.path("run");
  config.data.path = folder.path("tokens");
  EXPECT_EQ(error_of([&] { tokenize_data(config, folder.path("small")); }),
            cat(folder.path("tokens"), " holds tokens, not text: leave out --tokenizer"));
  config.model.preset = "dit-tiny";
  EXPECT_EQ(error_of([&] { tokenize_data(config, folder.path("small")); }),
            "--tokenizer is for a GPT, which learns text: leave it out for a DiT");
}

}  // namespace
}  // namespace startrail

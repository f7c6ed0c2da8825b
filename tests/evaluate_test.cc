// Evaluating on several ranks is evaluating on one: the same loss to rounding, of both kinds of model, and one sentence
// for ranks and grids that do not fit.
#include "startrail/train/loop/evaluate.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "startrail/base/testing.h"
#include "startrail/train/loop/checkpoint.h"
#include "startrail/train/loop/job.h"
#include "tests/command.h"
#include "tests/training.h"

namespace startrail {
namespace {

namespace fs = std::filesystem;

EvaluateOptions options_of(const fs::path& folder, const Sharing& sharing) {
  EvaluateOptions options;
  options.folder = folder;
  options.sharing = sharing;
  options.sharing.threads = 2;
  return options;
}

void expect_same(const Evaluation& many, const Evaluation& one) {
  EXPECT_NEAR(many.loss, one.loss, 1e-5 * one.loss);
  EXPECT_EQ(many.sequences, one.sequences);
  EXPECT_EQ(many.tokens, one.tokens);
  ASSERT_EQ(many.by_position.size(), one.by_position.size());
  for (size_t i = 0; i < one.by_position.size(); ++i)
    EXPECT_NEAR(many.by_position[i], one.by_position[i], 1e-5 * one.by_position[i]) << i;
}

// Folders of models that were trained for a few steps, once for all tests.

// A GPT of 4 heads and 2 key/value heads on 256 tokens.
const fs::path& gpt() {
  static const TempFolder folder;
  static const fs::path model = [] {
    TrainConfig config = small_config(folder);
    config.train.steps = 8;
    run_training(config, {}, /*save=*/true);
    return model_folder(config.run.folder);
  }();
  return model;
}

fs::path train_dit(const TempFolder& folder, int side, int tokens) {
  const TrainJob job =
      make_job({.sets = {"model.preset=dit-tiny", "model.layers=1", "model.dim=32", cat("model.height=", side),
                         cat("model.width=", side), "data.path=shapes", "data.generated=200",
                         cat("train.tokens=", tokens), "train.steps=4", "train.ema=0.9", "validate.windows=2",
                         "parallel.threads=2", "run.folder=" + folder.path("run")}});
  train(make_training(job));
  return model_folder(folder.path("run"));
}

// A DiT of 16 tokens a picture, four pictures in a sequence.
const fs::path& dit() {
  static const TempFolder folder;
  static const fs::path model = train_dit(folder, 16, 64);
  return model;
}

TEST(Evaluate, AGptIsTheSameOnAnyGrid) {
  const fs::path& model = gpt();
  const Evaluation one = evaluate(options_of(model, {1, "auto"}));
  EXPECT_EQ(one.by_position.size(), 16u);
  EXPECT_EQ(one.tokens, 256);
  EXPECT_GT(one.sequences, 2);
  for (const Sharing& sharing : {Sharing{8, "startrail:2"}, {8, "team=2,ring=2,heads=2"}, {6, "ring"}, {4, "auto"}}) {
    SCOPED_TRACE(cat(sharing.grid, " on ", sharing.ranks));
    expect_same(evaluate(options_of(model, sharing)), one);
  }
  // Of another length, and of fewer windows.
  const auto other = [&](const Sharing& sharing) {
    EvaluateOptions options = options_of(model, sharing);
    options.tokens = 101;
    options.windows = 3;
    options.buckets = 7;
    return evaluate(options);
  };
  const Evaluation shorter = other({1, "ring"});
  EXPECT_EQ(shorter.sequences, 3);
  EXPECT_EQ(shorter.by_position.size(), 7u);
  expect_same(other({8, "startrail:2"}), shorter);
}

TEST(Evaluate, PackedDocumentsAreTheSameOnAnyGrid) {
  const TempFolder folder;
  TrainConfig config = small_config(folder, /*lines=*/4, /*files=*/100);
  config.data.documents = true;
  config.train.tokens = 301;  // which no number of ranks divides
  config.train.steps = 4;
  run_training(config, {}, /*save=*/true);
  const fs::path model = model_folder(config.run.folder);
  const Evaluation one = evaluate(options_of(model, {1, "ring"}));
  for (const Sharing& sharing : {Sharing{8, "startrail:2"}, {4, "team=2,stripe=2"}, {8, "team=2,ring=2,heads=2"}}) {
    SCOPED_TRACE(cat(sharing.grid, " on ", sharing.ranks));
    expect_same(evaluate(options_of(model, sharing)), one);
  }
}

TEST(Evaluate, ADitIsTheSameOnAnyGrid) {
  const fs::path& model = dit();
  const Evaluation one = evaluate(options_of(model, {1, "ring"}));
  EXPECT_EQ(one.tokens, 64);
  EXPECT_TRUE(one.mean_weights);
  EXPECT_TRUE(one.by_position.empty());
  for (const Sharing& sharing : {Sharing{8, "startrail:2"}, {8, "team=4,stripe=2"}, {4, "ulysses"}, {6, "auto"}}) {
    SCOPED_TRACE(cat(sharing.grid, " on ", sharing.ranks));
    expect_same(evaluate(options_of(model, sharing)), one);
  }
}

// The classifier is one rank's, and so the same to the bit; what it is shown is drawn by all.
TEST(Evaluate, RecognisesTheSamePicturesOnAnyGrid) {
  const TempFolder folder;
  const fs::path model = train_dit(folder, 8, 4);  // small, as a classifier is trained twice
  const auto recognition = [&](const Sharing& sharing) {
    EvaluateOptions options = options_of(model, sharing);
    options.windows = 1;
    options.recognise = true;
    return evaluate(options).recognition.value();
  };
  const Recognition one = recognition({1, "ring"}), four = recognition({4, "startrail:2"});
  EXPECT_EQ(four.accuracy, one.accuracy);
  EXPECT_EQ(four.drawn, one.drawn);
  EXPECT_NEAR(four.recognised, one.recognised, 2.5 / static_cast<double>(one.drawn));  // one in doubt may turn
  ASSERT_EQ(four.by_class.size(), 4u);
  double mean = 0;
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(four.by_class[i].first, one.by_class[i].first);
    mean += four.by_class[i].second / 4;
  }
  EXPECT_NEAR(mean, four.recognised, 1e-9);
}

TEST(Evaluate, RefusesWhatDoesNotFit) {
  const auto refusal = [](const EvaluateOptions& options) { return error_of([&] { evaluate(options); }); };
  EXPECT_EQ(refusal(options_of(gpt(), {6, "startrail:2"})),
            "startrail:2 does not fit 6 ranks: C*C must divide the ranks; valid on 6 ranks: startrail:1");
  EXPECT_NE(refusal(options_of(gpt(), {8, "ulysses"})).find("heads axis 8 does not fit 4 heads with 2 key/value heads"),
            std::string::npos);
  EXPECT_NE(refusal(options_of(dit(), {8, "ulysses"})).find("heads axis 8 does not fit 4 heads"), std::string::npos);
  EXPECT_NE(refusal(options_of(gpt(), {4, "star"})).find("grid 'star' is not known"), std::string::npos);
  EXPECT_EQ(refusal(options_of(gpt(), {0, "ring"})), "--ranks 0 must be 1 to 256, the tokens of a sequence");
  EXPECT_EQ(refusal(options_of(gpt(), {257, "ring"})), "--ranks 257 must be 1 to 256, the tokens of a sequence");
  EXPECT_EQ(refusal(options_of(dit(), {65, "ring"})), "--ranks 65 must be 1 to 64, the tokens of a sequence");
  // A picture that is drawn is shorter than a sequence of four.
  EvaluateOptions options = options_of(dit(), {32, "ring"});
  options.recognise = true;
  EXPECT_EQ(refusal(options), "--ranks 32 must be 1 to 16, the tokens of a picture");
  options = options_of(gpt(), {4, "ring"});
  options.recognise = true;
  EXPECT_EQ(refusal(options), "--recognise and --guidance are for a DiT's pictures: leave them out");
}

TEST(Evaluate, IsToldRanksAndGridByTheCommand) {
  const Ended ended =
      run_command(cat("evaluate --json --windows 2 --ranks 4 --grid startrail:2 --checkpoint ", gpt().string()));
  ASSERT_EQ(ended.code, 0) << ended.text;
  EvaluateOptions options = options_of(gpt(), {1, "ring"});
  options.windows = 2;
  const double one = evaluate(options).loss, four = nlohmann::json::parse(ended.text)["loss"];
  EXPECT_NEAR(four, one, 1e-5 * one);
  const Ended refused = run_command(cat("evaluate --ranks 4 --grid startrail:3 --checkpoint ", gpt().string()));
  EXPECT_EQ(refused.code, 2);
  EXPECT_NE(refused.text.find("startrail:3 does not fit 4 ranks"), std::string::npos) << refused.text;
}

}  // namespace
}  // namespace startrail

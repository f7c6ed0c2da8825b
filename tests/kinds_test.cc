// Qwen2, Qwen3 and Mistral through the command: a folder is trained from, gone on with, evaluated, sampled and exported
// as the kind it is. What they compute is compared with transformers in llama_test.cc.
#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "startrail/base/file.h"
#include "startrail/base/testing.h"
#include "startrail/train/loop/checkpoint.h"
#include "startrail/train/loop/estimate.h"
#include "startrail/train/loop/job.h"
#include "startrail/train/model/weights.h"
#include "tests/command.h"
#include "tests/training.h"

namespace startrail {
namespace {

namespace fs = std::filesystem;

LlamaConfig shape_of(const std::string& kind) {
  LlamaConfig shape{.dim = 64, .layers = 2, .heads = 4, .key_heads = 2, .head_dim = 24, .hidden = 96};
  shape.kind = kind;
  shape.attention_bias = kind == "qwen3";
  shape.window = 20;
  if (kind != "mistral") shape.windowed = {kind == "qwen3", kind == "qwen2"};
  return shape;
}

// A folder with first weights.
fs::path write_model(const TempFolder& folder, const LlamaConfig& shape) {
  Llama model(shape);
  ParameterRow row(model, at::kFloat);
  row.weights().copy_(initial_values(model, 4, {0, row.size()}));
  const fs::path made = folder.path(shape.kind);
  export_model(model, made, at::kFloat);
  return made;
}

std::string expect_done(const std::string& command) {
  const Ended ended = run_command(command);
  EXPECT_EQ(ended.code, 0) << command << "\n" << ended.text;
  return ended.text;
}

TEST(Kinds, StayFromFolderToFolder) {
  for (const std::string kind : {"qwen2", "mistral", "qwen3"}) {
    const TempFolder folder;
    small_config(folder);
    const fs::path from = write_model(folder, shape_of(kind));
    const nlohmann::json made = read_json(from / "config.json");
    const std::string run = folder.path("run"), out = folder.path("out");
    const std::string start =
        cat("train --from ", from.string(), " --set data.path=", folder.path("data"), " --set run.folder=", run,
            " --set train.tokens=128 --set train.steps=2 --set parallel.ranks=4 --set validate.windows=2 ");
    const std::string said = expect_done(start + "--dry-run");
    EXPECT_NE(said.find(cat(kind, ", 2 layers, dim 64")), std::string::npos) << said;
    EXPECT_NE(said.find(cat("window 20 in ", kind == "mistral" ? 2 : 1, " of 2 layers")), std::string::npos) << said;
    expect_done(start + "--json");
    if (kind == "qwen3") {
      expect_done(cat("train --resume ", run, " --set train.steps=3 --set parallel.ranks=2 --json"));
      const Ended alone = run_command(cat("train ", run, "/config.toml --set run.folder=", folder.path("new")));
      EXPECT_EQ(alone.code, 2);
      EXPECT_NE(alone.text.find("model.kind qwen3 is not for new models"), std::string::npos) << alone.text;
      expect_done(cat("evaluate --checkpoint ", run, " --ranks 4"));
      expect_done(cat("sample --checkpoint ", run, " --prompt 'line ' --tokens 30"));
    }
    EXPECT_EQ(read_json(find_checkpoint(run) / "config.json"), made);
    EXPECT_NE(expect_done(cat("export --checkpoint ", run, " --out ", out)).find(made["architectures"][0]),
              std::string::npos);
    EXPECT_EQ(read_json(fs::path(out) / "config.json"), made);
  }
}

// Qwen3 has all that is not in a Llama: norms that save what they are given, and windows, which change no message.
TEST(Kinds, NeedTheMemoryAndSendTheBytesThatWereEstimated) {
  const TempFolder folder;
  const TrainConfig small = small_config(folder, /*lines=*/1000);
  const fs::path from = write_model(folder, shape_of("qwen3"));
  for (const auto& [ranks, grid, recompute] :
       {std::tuple(1, "ring", "false"), std::tuple(1, "ulysses", "true"), std::tuple(4, "startrail:2", "true")}) {
    const TrainJob job = make_job(
        {.from = from.string(),
         .sets = {cat("data.path=", small.data.path), "train.tokens=1024", "train.steps=1", "train.precision=float32",
                  cat("parallel.ranks=", ranks), cat("parallel.grid=", grid), cat("train.recompute=", recompute),
                  "parallel.threads=2", "validate.every=0", cat("run.folder=", folder.path(grid))}});
    const Estimate e = estimate(job.config, job.model);
    const TrainingResult result = train(make_training(job));
    const auto measured = static_cast<double>(result.last.peak_bytes);
    const std::string what = cat(grid, " ", recompute, ": measured ", measured, ", estimated ", e.rank_bytes());
    EXPECT_LT(measured, 1.25 * static_cast<double>(e.rank_bytes())) << what;
    EXPECT_GT(measured, 0.6 * static_cast<double>(e.rank_bytes())) << what;
    EXPECT_EQ(result.last.attention.total(), e.attention_bytes) << what;
  }
}

}  // namespace
}  // namespace startrail

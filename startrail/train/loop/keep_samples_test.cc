#include "startrail/train/loop/keep_samples.h"

#include <gtest/gtest.h>

#include "startrail/base/testing.h"
#include "startrail/train/loop/checkpoint.h"
#include "startrail/train/store/run_files.h"

namespace startrail {
namespace {

namespace fs = std::filesystem;

// A run that is asked to stop has its checkpoint already: it does not wait for what could be drawn from it.
TEST(KeptSample, IsGivenUpWhenTheRunIsStopped) {
  const TempFolder folder;
  std::string text;
  for (int i = 0; i < 500; ++i) text += cat("line ", i * 7919 % 1009, "\n");
  const std::vector<std::string> both{"model.layers=1", "model.dim=32", "train.steps=1", "train.precision=float32",
                                      "parallel.threads=1"};
  std::vector<std::string> gpt{cat("data.path=", folder.write("text.txt", text)), "train.tokens=64",
                               cat("run.folder=", folder.path("gpt"))},
      dit{"model.preset=dit-tiny", "data.path=shapes", "data.validation=0", cat("run.folder=", folder.path("dit"))};
  for (std::vector<std::string>* sets : {&gpt, &dit}) {
    sets->insert(sets->end(), both.begin(), both.end());
    const TrainJob job = make_job({.sets = *sets});
    train(make_training(job));
    const fs::path checkpoint = find_checkpoint(job.config.run.folder);
    const fs::path samples = fs::path(job.config.run.folder) / kSampleFolder;
    int asked = 0;
    EXPECT_FALSE(keep_sample(job, checkpoint, [&] { return ++asked > 3; }));
    EXPECT_EQ(asked, 4);
    EXPECT_TRUE(fs::is_empty(samples));
    EXPECT_TRUE(keep_sample(job, checkpoint, [] { return false; }));
    EXPECT_FALSE(fs::is_empty(samples));
  }
}

}  // namespace
}  // namespace startrail

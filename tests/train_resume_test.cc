// How a run goes on: by itself on machines that come and go, and past checkpoints that are damaged.
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "startrail/base/file.h"
#include "startrail/base/testing.h"
#include "startrail/train/loop/checkpoint.h"
#include "tests/command.h"
#include "tests/training.h"

namespace startrail {
namespace {

namespace fs = std::filesystem;

// A small model on made-up text that keeps a checkpoint of every second of 6 steps.
class Resume : public testing::Test {
 protected:
  Resume() {
    small_config(folder_);
    folder_.write("config.toml", cat("[model]\ndim = 64\nlayers = 1\nheads = 4\nhidden = 96\n[data]\npath = \"",
                                     folder_.path("data"), "\"\n[train]\ntokens = 128\nsteps = 6\n[run]\nfolder = \"",
                                     folder_.path("run"), "\"\nsave_every = 2\nkeep = 0\n[validate]\nwindows = 1\n"));
  }
  Ended train(const std::string& more) const {
    return run_command(cat("train ", folder_.path("config.toml"), " ", more));
  }
  fs::path checkpoint(int step) const { return folder_.path(cat("run/checkpoints/step-0000000", step)); }
  // Changes a byte in the middle.
  static void damage(const fs::path& file) {
    std::fstream out(file, std::ios::in | std::ios::out | std::ios::binary);
    const auto middle = static_cast<int64_t>(fs::file_size(file)) / 2;
    out.seekg(middle);
    const int byte = out.get();
    out.seekp(middle);
    out.put(static_cast<char>(byte ^ 1));
  }

  TempFolder folder_;
};

void expect_parts(const Ended& ended, int code, const std::vector<std::string>& parts) {
  EXPECT_EQ(ended.code, code) << ended.text;
  for (const std::string& part : parts)
    EXPECT_NE(ended.text.find(part), std::string::npos) << part << " in\n" << ended.text;
}

TEST_F(Resume, AutoStartsGoesOnAndEnds) {
  const std::string line = "--resume auto --set train.steps=";
  Ended ended = train(line + "4");
  expect_parts(ended, 0, {"step 4/4", "done"});
  EXPECT_EQ(ended.text.find("from step"), std::string::npos);
  expect_parts(train(line + "6"), 0, {"from step 4", "step 6/6"});
  // The same line again: nothing is left to do, which is no mistake.
  expect_parts(train(line + "6"), 0, {"nothing to do", "is at step 6 of 6"});
  // What the file says by now counts, as far as a run that goes on can be changed.
  folder_.write("more.toml", cat("[data]\npath = \"", folder_.path("data"), "\"\n[train]\nsteps = 7\nbatch = 2\n",
                                 "[run]\nfolder = \"", folder_.path("run"), "\"\n"));
  expect_parts(run_command(cat("train --resume auto ", folder_.path("more.toml"))), 0,
               {"from step 6", "step 7/7", "of 2 x 128"});
  expect_parts(train("--resume auto --set train.seed=9"), 2, {"train.seed is 9 and was 1"});
  // Weights to start from are for the first start.
  ended = train(cat("--resume auto --from ", folder_.path("run"), " --set train.steps=8"));
  expect_parts(ended, 0, {"from step 7", "step 8/8"});
}

TEST_F(Resume, PassesOverADamagedCheckpointAndSaysSo) {
  ASSERT_EQ(train("").code, 0);
  const std::string run = folder_.path("run");
  damage(checkpoint(6) / "model.safetensors");
  const std::vector<std::string> said = {"startrail: warning: ", "step-00000006/model.safetensors is damaged",
                                         ": going on from ", "step-00000004, the newest whole checkpoint"};
  expect_parts(run_command(cat("train --dry-run --resume ", run)), 0, said);
  // One that is named is not replaced by another.
  const Ended refused = run_command(cat("train --resume ", checkpoint(6).string()));
  expect_parts(refused, 2, {"is damaged", "; the newest whole checkpoint of the run is ", "step-00000004\n"});
  expect_parts(run_command(cat("export --out ", folder_.path("out"), " --checkpoint ", run)), 2,
               {"is damaged", "; the newest whole checkpoint of the run is ", "step-00000004\n"});
  Ended ended = train("--resume auto");
  expect_parts(ended, 0, said);
  expect_parts(ended, 0, {"from step 4", "step 6/6"});
  verify_checkpoint(checkpoint(6));
  // A file that is gone, and training.json itself.
  fs::remove(checkpoint(6) / "training.json");
  damage(checkpoint(4) / "training.json");
  ended = run_command(cat("train --resume ", run, " --set train.steps=5"));
  expect_parts(ended, 0, {"step-00000006/training.json cannot be opened", "step-00000002, the newest", "from step 2"});
  for (int step : {2, 4, 5}) damage(checkpoint(step) / "optimizer.safetensors");
  expect_parts(train("--resume auto"), 2, {"is damaged", "; the run has no other checkpoint that is whole"});
}

// The settings in training.json are kilobytes long: an error says what is wrong, not all that was read.
TEST_F(Resume, SaysInOneSentenceWhatIsWrongWithAState) {
  ASSERT_EQ(train("").code, 0);
  const fs::path state = checkpoint(6) / "training.json";
  const nlohmann::json whole = read_json(state);
  const auto refusal = [&](const std::string& text) {
    std::ofstream(state) << text;
    std::string error;
    for (const auto& read : {std::function<void()>([&] { read_state(checkpoint(6)); }),
                             std::function<void()>([&] { verify_checkpoint(checkpoint(6)); })})
      if (const std::string one = error_of(read); one != "no error") error = one;
    EXPECT_TRUE(error.starts_with(state.string())) << error;
    EXPECT_LT(error.size(), state.string().size() + 100) << error;
    EXPECT_EQ(error.find("exception"), std::string::npos) << error;
    return error.substr(std::min(error.size(), state.string().size()));
  };
  const std::string text = whole.dump();
  EXPECT_EQ(refusal(text.substr(0, text.size() - 2)),
            cat(" is not whole JSON: it cannot be read beyond byte ", text.size() - 1));
  EXPECT_EQ(refusal("[1]"), " is damaged: it is no JSON object");
  nlohmann::json changed = whole;
  changed["step"] = 5;
  EXPECT_EQ(refusal(changed.dump()), " is damaged: it does not have the checksum it was written with");
  changed = whole;
  changed.erase("checksum");
  changed["checksun"] = whole["checksum"];
  EXPECT_EQ(refusal(changed.dump()), " is damaged: it does not have the checksum it was written with");
  // As it was before it had a checksum.
  changed = whole;
  changed.erase("checksum");
  std::ofstream(state) << changed.dump();
  EXPECT_EQ(read_state(checkpoint(6)).step, 6);
  verify_checkpoint(checkpoint(6));
  changed["settings"] = 7;
  EXPECT_EQ(refusal(changed.dump()), " is damaged: its field settings is missing or of another kind");
  changed = whole;
  changed.erase("checksum");
  changed["files"][0]["parts"][0] = "x";
  EXPECT_EQ(refusal(changed.dump()), " is damaged: its field 0 is missing or of another kind");
}

}  // namespace
}  // namespace startrail

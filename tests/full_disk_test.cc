// What is left when the disk is full: nothing half written, an error that says what to do, and a second try that works.
// A limit on the size of files stands in for the disk: it needs no rights, and a write beyond it fails as on a full
// one.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>

#include <fstream>

#include "startrail/base/testing.h"
#include "startrail/base/trace.h"
#include "startrail/train/loop/checkpoint.h"
#include "startrail/train/loop/event_file.h"
#include "tests/command.h"
#include "tests/training.h"

namespace startrail {
namespace {

namespace fs = std::filesystem;

// No file of this process grows beyond this while it lives.
class FullDisk {
 public:
  explicit FullDisk(rlim_t bytes) : signal_(signal(SIGXFSZ, SIG_IGN)) {
    getrlimit(RLIMIT_FSIZE, &before_);
    const rlimit full{bytes, before_.rlim_max};
    setrlimit(RLIMIT_FSIZE, &full);
  }
  ~FullDisk() {
    setrlimit(RLIMIT_FSIZE, &before_);
    signal(SIGXFSZ, signal_);
  }
  FullDisk(const FullDisk&) = delete;
  FullDisk& operator=(const FullDisk&) = delete;

 private:
  rlimit before_{};
  sighandler_t signal_;
};

void expect_parts(const std::string& text, const std::vector<std::string>& parts) {
  for (const std::string& part : parts) EXPECT_NE(text.find(part), std::string::npos) << part << " in\n" << text;
}

// A run of a model of some 200 kB, whose checkpoints hold three times that.
struct SmallRun {
  TempFolder folder;
  std::string command =
      cat("train --set data.path=", folder.path("data"), " --set run.folder=", folder.path("run"),
          " --set train.tokens=64 --set model.layers=1 --set model.dim=64 --set model.hidden=64 --set "
          "train.steps=2 --set run.save_every=1 --set validate.windows=1 --set parallel.ranks=2 ");
  SmallRun() { small_config(folder); }
};

constexpr rlim_t kRoom = 100'000;  // for all but weights

TEST(FullDisk, LeavesNoHalfCheckpointAndSaysWhatToDo) {
  const SmallRun run;
  const fs::path checkpoints = run.folder.path("run/checkpoints");
  Ended ended;
  {
    const FullDisk full(kRoom);
    ended = run_command(run.command);
  }
  EXPECT_EQ(ended.code, 3) << ended.text;
  expect_parts(ended.text, {"startrail: the checkpoint of step 1 cannot be saved: ", "File too large; it takes ",
                            ": make room, such as by deleting older ones in ", checkpoints.string(), "run.keep"});
  EXPECT_TRUE(fs::is_empty(checkpoints));
  EXPECT_EQ(run_command(run.command).code, 0);
  // What was there is there still, and the run goes on from it.
  {
    const FullDisk full(kRoom);
    ended = run_command(cat("train --set train.steps=3 --resume ", run.folder.path("run")));
  }
  EXPECT_EQ(ended.code, 3) << ended.text;
  verify_checkpoint(checkpoints / "step-00000002");
  for (const auto& entry : fs::directory_iterator(checkpoints))
    EXPECT_FALSE(entry.path().filename().string().starts_with(".")) << entry.path();
  // What a kill in the middle of a save leaves goes when the run goes on, before anything new needs room.
  run.folder.write("run/checkpoints/.step-00000003.partial/model.safetensors", "half");
  {
    const FullDisk full(kRoom);
    run_command(cat("train --set train.steps=3 --resume ", run.folder.path("run")));
  }
  EXPECT_FALSE(fs::exists(checkpoints / ".step-00000003.partial"));
  EXPECT_EQ(run_command(cat("train --set train.steps=3 --resume ", run.folder.path("run"))).code, 0);
}

TEST(FullDisk, ExportsAgainAfterwards) {
  const SmallRun run;
  ASSERT_EQ(run_command(run.command).code, 0);
  const std::string command = cat("export --checkpoint ", run.folder.path("run"), " --out ", run.folder.path("out"));
  Ended ended;
  {
    const FullDisk full(kRoom);
    ended = run_command(command);
  }
  EXPECT_EQ(ended.code, 3) << ended.text;
  expect_parts(ended.text, {"model.safetensors cannot be ", "File too large: make room, such as by deleting "});
  EXPECT_FALSE(fs::exists(run.folder.path("out")));
  EXPECT_EQ(run_command(command).code, 0);
}

TEST(FullDisk, IsNoticedByWhatIsWrittenEveryStep) {
  const TempFolder folder;
  const auto fill = [](auto& file) {
    return error_of<ClusterError>([&] {
      const FullDisk full(2000);
      for (int64_t step = 1; step <= 50; ++step) {
        StepReport report;
        report.step = step;
        file.write(report);
      }
    });
  };
  Metrics metrics(folder.path(), {});
  EXPECT_EQ(fill(metrics), cat(folder.path("metrics.jsonl"), " cannot be written: File too large"));
  EventFile events(folder.path(), 0);
  expect_parts(fill(events), {"events.out.tfevents.", " cannot be written: File too large"});
}

TEST(FullDisk, LeavesNoHalfTrace) {
  const TempFolder folder;
  RankTrace trace(0);
  for (int i = 0; i < 100; ++i) trace.add({"forward", TraceKind::phase, 1.0 * i, i + 0.5});
  const std::string file = folder.path("trace.json");
  const auto write = [&] { write_traces(file, {trace_text(trace)}, {}); };
  EXPECT_EQ(error_of<ClusterError>([&] {
              const FullDisk full(1000);
              write();
            }),
            cat("the trace ", file, " cannot be written: File too large"));
  EXPECT_FALSE(fs::exists(file));
  write();
  EXPECT_GT(fs::file_size(file), 1000u);
}

}  // namespace
}  // namespace startrail

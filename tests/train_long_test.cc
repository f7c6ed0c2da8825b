#include <gtest/gtest.h>

#include "tests/training.h"

namespace startrail {
namespace {

TEST(TrainLong, LossesDoNotDependOnTheRanks) {
  const char* all_axes = "team=2,ring=2,stripe=1,heads=2";
  expect_losses_of_one_rank(30, {{8, 1, "ring", true},
                                 {8, 1, "startrail:2", true},
                                 {8, 1, all_axes, true},
                                 {8, 2, "startrail:2", true},
                                 {8, 1, all_axes, false}});
}

TEST(TrainLong, DitIsTheSameOnAnyGrid) {
  for (const char* objective : {"flow", "ddpm"})
    expect_dit_losses_of_one_rank(objective, 30,
                                  {{8, 1, "ring"}, {8, 1, "startrail:2"}, {8, 1, "team=4,stripe=2"}, {4, 2, "ring"}});
}

TEST(TrainLong, KilledFiftyTimesNeverLosesACheckpoint) { kill_and_resume(50, 2); }

}  // namespace
}  // namespace startrail

#include <gtest/gtest.h>

#include "tests/training.h"

namespace startrail {
namespace {

TEST(TrainLong, KilledFiftyTimesNeverLosesACheckpoint) { kill_and_resume(50, 2); }

}  // namespace
}  // namespace startrail

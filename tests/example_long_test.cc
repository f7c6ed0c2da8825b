// The example of docs/data.md, from text to a fine-tuned model that transformers loads, as it is written there.
#include <gtest/gtest.h>

#include "startrail/base/testing.h"
#include "tests/python.h"

namespace startrail {
namespace {

TEST(ExampleLong, OfDataRunsAsItIsWritten) {
  const TempFolder folder;
  python("example_reference.py " + folder.path());
}

}  // namespace
}  // namespace startrail

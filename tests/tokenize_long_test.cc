#include <gtest/gtest.h>

#include "tests/tokenize.h"

namespace startrail {
namespace {

TEST(TokenizeLong, GivesTheTokensOfHuggingFace) { expect_reference_tokens(5'000'000); }

TEST(TokenizeLong, KilledTwentyTimesItGoesOn) { kill_and_tokenize(20); }

}  // namespace
}  // namespace startrail

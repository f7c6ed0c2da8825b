#include "startrail/train/data/tokens/ranges.h"

#include <gtest/gtest.h>

#include <vector>

#include "startrail/base/error.h"
#include "startrail/base/random.h"

namespace startrail {
namespace {

TEST(Ranges, FindsEveryTokenInAndOutside) {
  for (uint64_t seed = 0; seed < 50; ++seed) {
    constexpr int64_t kRow = 200;
    Ranges ranges;
    std::vector<int64_t> in, out;
    for (int64_t at = 0; at < kRow;) {
      const auto end = std::min<int64_t>(kRow, at + 1 + static_cast<int64_t>(mix(seed, static_cast<uint64_t>(at)) % 9));
      const bool held = mix(seed + 1000, static_cast<uint64_t>(at)) % 3 == 0;
      if (held) ranges.add(at, end);
      for (; at < end; ++at) (held ? in : out).push_back(at);
    }
    ASSERT_EQ(ranges.tokens(), static_cast<int64_t>(in.size()));
    const auto expect = [](const Ranges::Run& run, const std::vector<int64_t>& all, size_t position) {
      ASSERT_GE(run.count, 1);
      for (int64_t i = 0; i < run.count; ++i)
        ASSERT_EQ(run.first + i, all.at(position + static_cast<size_t>(i))) << position;
      const size_t after = position + static_cast<size_t>(run.count);
      EXPECT_TRUE(after == all.size() || all[after] != run.first + run.count) << "the run could be longer";
    };
    const Ranges same = Ranges::unpack(ranges.pack());
    EXPECT_EQ(same.size(), ranges.size());
    for (const Ranges& of : {ranges, same}) {
      for (size_t i = 0; i < in.size(); ++i) expect(of.inside(static_cast<int64_t>(i)), in, i);
      for (size_t i = 0; i < out.size(); ++i) expect(of.outside(static_cast<int64_t>(i), kRow), out, i);
    }
  }
}

TEST(Ranges, PacksLargePlaces) {
  Ranges ranges;
  ranges.add(0, 127);
  ranges.add(128, 256);
  ranges.add(int64_t{1} << 62, (int64_t{1} << 62) + 5);
  const Ranges same = Ranges::unpack(ranges.pack());
  EXPECT_EQ(same.inside(255).first, int64_t{1} << 62);
  EXPECT_EQ(same.outside(1, INT64_MAX).first, 256);
  EXPECT_EQ(Ranges::unpack(Ranges().pack()).tokens(), 0);
  EXPECT_THROW(Ranges::unpack(ranges.pack().substr(1)), InternalError);
  EXPECT_THROW(Ranges::unpack(ranges.pack() + "x"), InternalError);
  EXPECT_THROW(ranges.add(5, 6), InternalError);
}

}  // namespace
}  // namespace startrail

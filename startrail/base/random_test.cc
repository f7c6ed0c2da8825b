#include "startrail/base/random.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <vector>

#include "startrail/base/error.h"

namespace startrail {
namespace {

std::vector<int64_t> order(int64_t count, uint64_t seed, int64_t epoch) {
  std::vector<int64_t> places;
  for (int64_t i = 0; i < count; ++i) places.push_back(shuffled(i, count, seed, epoch));
  return places;
}

TEST(Shuffle, IsABijection) {
  for (int64_t count = 1; count <= 300; ++count)
    for (const auto& [seed, epoch] : {std::pair<uint64_t, int64_t>{0, 0}, {7, 3}, {~uint64_t{0}, 1}}) {
      std::vector<int64_t> places = order(count, seed, epoch);
      std::sort(places.begin(), places.end());
      for (int64_t i = 0; i < count; ++i) ASSERT_EQ(places[static_cast<size_t>(i)], i) << count << " " << seed;
    }
}

TEST(Shuffle, KeepsLargeCountsApartAndInside) {
  for (const int64_t count : {int64_t{1} << 20, (int64_t{1} << 32) + 1, int64_t{1'000'000'007}, INT64_MAX}) {
    std::set<int64_t> places;
    for (int64_t i = 0; i < 20'000; ++i) {
      places.insert(shuffled(i, count, 1, 2));
      places.insert(shuffled(count - 1 - i, count, 1, 2));
    }
    EXPECT_EQ(places.size(), 40'000u) << count;
    EXPECT_GE(*places.begin(), 0);
    EXPECT_LT(*places.rbegin(), count);
  }
}

TEST(Shuffle, DiffersBySeedAndEpoch) {
  std::set<std::vector<int64_t>> orders;
  for (uint64_t seed = 0; seed < 10; ++seed)
    for (int64_t epoch = 0; epoch < 10; ++epoch) orders.insert(order(100, seed, epoch));
  EXPECT_EQ(orders.size(), 100u);
}

// Each order is expected 1000 times; 5 standard deviations are 158.
TEST(Shuffle, MakesEveryOrderEquallyOften) {
  for (const auto& [count, orders] : {std::pair<int64_t, int64_t>{2, 2}, {3, 6}, {4, 24}, {5, 120}}) {
    std::map<std::vector<int64_t>, int> times;
    for (int64_t epoch = 0; epoch < 1000 * orders; ++epoch) ++times[order(count, 5, epoch)];
    EXPECT_EQ(static_cast<int64_t>(times.size()), orders);
    for (const auto& [places, seen] : times) EXPECT_NEAR(seen, 1000, 158) << join(places);
  }
}

// Neighbours must not stay neighbours: in a random order of n the mean distance is n / 3.
TEST(Shuffle, SeparatesNeighbours) {
  const std::vector<int64_t> places = order(10'000, 11, 0);
  double distance = 0;
  for (size_t i = 1; i < places.size(); ++i) distance += std::abs(static_cast<double>(places[i] - places[i - 1]));
  EXPECT_NEAR(distance / 9'999, 10'000 / 3.0, 150);
}

// A checkpoint's place in the data means the same in every later version.
TEST(Shuffle, IsTheSameForever) {
  EXPECT_EQ(mix(0, 0), 12035550249420947055u);
  EXPECT_EQ(mix(1, 2), 13608149317741381227u);
  EXPECT_EQ(order(10, 1234, 0), (std::vector<int64_t>{3, 7, 1, 0, 8, 5, 9, 2, 4, 6}));
  EXPECT_EQ(order(10, 1234, 1), (std::vector<int64_t>{6, 1, 9, 4, 2, 3, 7, 0, 8, 5}));
  EXPECT_EQ(shuffled(123'456'789, 1'000'000'000'000, 42, 7), 8'782'010'035);
}

TEST(Shuffle, RefusesAnIndexOutside) {
  EXPECT_THROW(shuffled(5, 5, 0, 0), InternalError);
  EXPECT_THROW(shuffled(-1, 5, 0, 0), InternalError);
  EXPECT_THROW(shuffled(0, 0, 0, 0), InternalError);
}

}  // namespace
}  // namespace startrail

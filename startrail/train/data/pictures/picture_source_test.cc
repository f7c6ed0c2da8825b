#include "startrail/train/data/pictures/picture_source.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <map>

#include "startrail/base/testing.h"
#include "startrail/run/comm/ranks.h"
#include "startrail/train/model/diffusion.h"

namespace startrail {
namespace {

constexpr int64_t kCount = 12;

// Picture i is i everywhere plus its place; `broken` ones cannot be read from row 8 on.
class Numbers : public Pictures {
 public:
  explicit Numbers(std::set<int64_t> broken = {}) : broken_(std::move(broken)) {}
  int64_t count() const override { return kCount; }
  int64_t label(int64_t index) const override { return index % 3; }
  const std::vector<std::string>& classes() const override { return classes_; }
  at::Tensor read(int64_t index, const PictureBand& band) const override {
    if (broken_.contains(index) && band.end_row > 8) throw UserError(cat("picture ", index, " is damaged"));
    return whole(index)
        .narrow(1, band.first_frame, band.end_frame - band.first_frame)
        .narrow(2, band.first_row, band.end_row - band.first_row);
  }
  static at::Tensor whole(int64_t index) {
    return at::arange(3 * 16 * 16, at::kFloat).view({3, 1, 16, 16}) / 1000 + static_cast<double>(index);
  }
  std::string name(int64_t index) const override { return cat("picture ", index); }
  std::string describe() const override { return "numbers"; }
  std::string fingerprint() const override { return "n"; }
  std::vector<std::string> skipped() const override { return {"picture -1 is empty"}; }

 private:
  std::set<int64_t> broken_;
  std::vector<std::string> classes_{"a", "b", "c"};
};

DitConfig shape() {
  DitConfig config;
  config.size = {1, 16, 16};
  config.patch = {1, 4, 4};
  config.classes = 3;
  return config;
}

// The whole example, put together from the ranks' parts, in the order of the sequence.
Example whole_example(const PictureSource& source, int64_t index, bool training, int ranks, Order layout) {
  Example whole;
  run_ranks(ranks, 2, [&](const std::shared_ptr<Group>& group) {
    const Example mine = training ? source.training(index, layout, *group) : *source.validation(index, layout, *group);
    const at::Tensor places = places_of({layout, mine.tokens, ranks}, group->rank());
    EXPECT_EQ(mine.input.size(0), places.size(0));
    for (int rank = 0; rank < ranks; ++rank) {
      group->control().barrier();
      if (group->rank() != rank) continue;
      if (rank == 0) {
        whole = mine;
        whole.input = at::zeros({mine.tokens, mine.input.size(1)});
        whole.target = at::zeros_like(whole.input);
      }
      whole.input.index_copy_(0, places, mine.input);
      whole.target.index_copy_(0, places, mine.target);
      EXPECT_EQ(whole.conditions.size(), mine.conditions.size());
      for (size_t i = 0; i < mine.conditions.size(); ++i) {
        EXPECT_EQ(whole.conditions[i].time, mine.conditions[i].time);
        EXPECT_EQ(whole.conditions[i].label, mine.conditions[i].label);
      }
    }
    group->control().barrier();
  });
  return whole;
}

// With flow, picture = noisy - level * target.
at::Tensor clean(const Example& example, int64_t picture) {
  const double level = example.conditions[picture].time / 1000;
  return from_patches((example.input - example.target * level).narrow(0, picture * 16, 16), shape());
}

TEST(PictureSource, GivesEveryPictureOnceInAnEpochWithItsClass) {
  PictureSourceOptions options;
  options.validation = 0.25;
  options.class_dropout = 0;
  const PictureSource source(std::make_shared<Numbers>(), nullptr, shape(), options);
  EXPECT_EQ(source.epoch(), 9);
  EXPECT_EQ(source.validation_count(), 3);
  EXPECT_EQ(source.describe(), "numbers: 0 a, 1 b, 2 c; 3 of them for validation");
  std::map<int64_t, int> seen;
  std::set<double> times;
  std::vector<int64_t> first, second;
  for (int64_t i = 0; i < 18; ++i) {
    const Example example = whole_example(source, i, true, 1, Order::contiguous);
    const at::Tensor picture = clean(example, 0);
    const auto index = static_cast<int64_t>(std::lround(picture[0][0][0][0].item<double>()));
    EXPECT_LT((picture - Numbers::whole(index)).abs().max().item<double>(), 1e-4);
    EXPECT_EQ(example.conditions[0].label, index % 3);
    ++seen[index];
    times.insert(example.conditions[0].time);
    (i < 9 ? first : second).push_back(index);
  }
  EXPECT_EQ(seen.size(), 9u);
  for (const auto& [index, count] : seen) EXPECT_EQ(count, 2) << index;
  EXPECT_NE(first, second);  // another order
  EXPECT_EQ(times.size(), 18u);
  for (int64_t i = 0; i < 3; ++i) {
    const at::Tensor picture = clean(whole_example(source, i, false, 1, Order::contiguous), 0);
    EXPECT_FALSE(seen.contains(std::lround(picture[0][0][0][0].item<double>())));  // held out
  }
}

// Which pictures are held out of a set without some of its pictures.
std::set<int64_t> held_out(std::set<int64_t> gone) {
  struct Fewer : Numbers {
    std::vector<int64_t> left;
    int64_t count() const override { return static_cast<int64_t>(left.size()); }
    std::string name(int64_t index) const override { return Numbers::name(left[static_cast<size_t>(index)]); }
    int64_t label(int64_t index) const override { return Numbers::label(left[static_cast<size_t>(index)]); }
    at::Tensor read(int64_t index, const PictureBand& band) const override {
      return Numbers::read(left[static_cast<size_t>(index)], band);
    }
  };
  const auto set = std::make_shared<Fewer>();
  for (int64_t i = 0; i < Numbers().count(); ++i)
    if (!gone.contains(i)) set->left.push_back(i);
  PictureSourceOptions options;
  options.validation = 0.34;  // 4 of 12, 3 of 11
  const PictureSource source(set, nullptr, shape(), options);
  std::set<int64_t> held;
  for (int64_t i = 0; i < source.validation_count(); ++i) {
    const at::Tensor picture = clean(whole_example(source, i, false, 1, Order::contiguous), 0);
    held.insert(std::lround(picture[0][0][0][0].item<double>()));
  }
  return held;
}

TEST(PictureSource, DoesNotTrainOnWhatWasHeldOutWhenAPictureGoes) {
  const std::set<int64_t> all = held_out({});
  ASSERT_EQ(all.size(), 4u);
  for (int64_t gone = 0; gone < 12; ++gone) {
    const std::set<int64_t> held = held_out({gone});
    EXPECT_EQ(held.size(), 3u);
    // Of the four, those left but for one that is now trained on.
    EXPECT_TRUE(std::includes(all.begin(), all.end(), held.begin(), held.end())) << gone;
  }
}

TEST(PictureSource, IsTheSameOnAnyNumberOfRanksAndInAnyLayout) {
  PictureSourceOptions options;
  options.together = 3;
  options.validation = 0.5;
  const PictureSource source(std::make_shared<Numbers>(), nullptr, shape(), options);
  for (bool training : {true, false}) {
    const Example one = whole_example(source, 0, training, 1, Order::contiguous);
    EXPECT_EQ(one.tokens, 48);
    EXPECT_EQ(one.mask.documents, (std::vector<int64_t>{16, 16, 16}));
    for (int ranks : {2, 5, 7})
      for (Order layout : {Order::contiguous, Order::zigzag, Order::striped}) {
        const Example many = whole_example(source, 0, training, ranks, layout);
        EXPECT_TRUE(many.input.equal(one.input)) << ranks << to_text(layout);
        EXPECT_TRUE(many.target.equal(one.target)) << ranks << to_text(layout);
      }
  }
}

TEST(PictureSource, LeavesOutClassesAsOftenAsAsked) {
  PictureSourceOptions options;
  options.together = 12;
  options.class_dropout = 0.3;
  options.validation = 0;
  const PictureSource source(std::make_shared<Numbers>(), nullptr, shape(), options);
  int without = 0;
  double low = 0;
  for (int64_t i = 0; i < 100; ++i)
    for (const Condition& one : whole_example(source, i, true, 1, Order::contiguous).conditions) {
      without += one.label < 0;
      low += one.time < 250;
    }
  EXPECT_NEAR(without / 1200.0, 0.3, 0.05);
  EXPECT_NEAR(low / 1200.0, 0.25, 0.05);
}

TEST(PictureSource, StopsAtADamagedPictureOrTakesAnother) {
  PictureSourceOptions options;
  options.validation = 0;
  options.class_dropout = 0;
  const auto all = [&](bool skip, int ranks) {
    options.skip_bad = skip;
    const PictureSource source(std::make_shared<Numbers>(std::set<int64_t>{3, 4}), nullptr, shape(), options);
    std::vector<double> seen;
    for (int64_t i = 0; i < kCount; ++i) {
      const Example example = whole_example(source, i, true, ranks, Order::contiguous);
      const at::Tensor picture = clean(example, 0);
      seen.push_back(std::round(picture[0][0][0][0].item<double>()));
      EXPECT_LT((picture - Numbers::whole(static_cast<int64_t>(seen.back()))).abs().max().item<double>(), 1e-4);
      EXPECT_EQ(example.conditions[0].label, static_cast<int64_t>(seen.back()) % 3);
    }
    EXPECT_EQ(source.skipped(),
              (std::vector<std::string>{"picture -1 is empty", "picture 3 is damaged", "picture 4 is damaged"}));
    return seen;
  };
  EXPECT_NE(error_of([&] { all(false, 1); }).find("is damaged; data.on_error=skip goes on without such files"),
            std::string::npos);
  EXPECT_NE(error_of([&] { all(false, 4); }).find("is damaged"), std::string::npos);
  const auto seen = all(true, 1);
  EXPECT_EQ(std::count(seen.begin(), seen.end(), 3.0) + std::count(seen.begin(), seen.end(), 4.0), 0);
  EXPECT_EQ(std::set<double>(seen.begin(), seen.end()).size(), 10u);  // two of them twice, in place of 3 and 4
  EXPECT_EQ(all(true, 4), seen);                                      // though rank 0 holds no damaged row
  options.skip_bad = true;
  std::set<int64_t> every;
  for (int64_t i = 0; i < kCount; ++i) every.insert(i);
  const PictureSource none(std::make_shared<Numbers>(every), nullptr, shape(), options);
  EXPECT_NE(error_of([&] { whole_example(none, 0, true, 1, Order::contiguous); }).find("no picture can be read"),
            std::string::npos);
}

// A run outlives the loss of all that it holds out.
TEST(PictureSource, HasNoValidationWhenNothingHeldOutCanBeRead) {
  PictureSourceOptions options;
  options.skip_bad = true;
  std::set<int64_t> every;
  for (int64_t i = 0; i < kCount; ++i) every.insert(i);
  const PictureSource source(std::make_shared<Numbers>(), std::make_shared<Numbers>(every), shape(), options);
  run_ranks(2, 2, [&](const std::shared_ptr<Group>& group) {
    EXPECT_FALSE(source.validation(0, Order::contiguous, *group));
    EXPECT_EQ(source.training(0, Order::contiguous, *group).tokens, 16);
  });
}

// What takes the place of a damaged picture comes from the same side of the split.
TEST(PictureSource, NeverTrainsOnWhatIsHeldOut) {
  PictureSourceOptions options;
  options.validation = 0.5;
  options.skip_bad = true;
  const PictureSource whole(std::make_shared<Numbers>(), nullptr, shape(), options);
  const PictureSource damaged(std::make_shared<Numbers>(std::set<int64_t>{0, 2, 4, 6, 8}), nullptr, shape(), options);
  const auto pictures_of = [&](const PictureSource& source, bool training) {
    std::set<int64_t> seen;
    for (int64_t i = 0; i < 6; ++i)
      seen.insert(
          std::lround(clean(whole_example(source, i, training, 2, Order::contiguous), 0)[0][0][0][0].item<double>()));
    return seen;
  };
  for (bool training : {true, false}) {
    const auto all = pictures_of(whole, training), some = pictures_of(damaged, training);
    EXPECT_EQ(all.size(), 6u);
    EXPECT_TRUE(std::includes(all.begin(), all.end(), some.begin(), some.end()));
    for (int64_t bad : {0, 2, 4, 6, 8}) EXPECT_FALSE(some.contains(bad));
  }
  options.validation = 0.25;
  EXPECT_NE(PictureSource(std::make_shared<Numbers>(), nullptr, shape(), options).fingerprint(), whole.fingerprint());
}

TEST(PictureSource, RefusesMoreClassesThanTheModelHas) {
  DitConfig model = shape();
  model.classes = 2;
  EXPECT_EQ(error_of([&] { PictureSource(std::make_shared<Numbers>(), nullptr, model, {}); }),
            "the data has 3 classes, but the model only 2: set model.classes to 3");
}

}  // namespace
}  // namespace startrail

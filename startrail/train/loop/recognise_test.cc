#include "startrail/train/loop/recognise.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <set>

#include "startrail/base/random.h"
#include "startrail/base/testing.h"

namespace startrail {
namespace {

TEST(Recogniser, TellsShapesApartAndNoiseFromNothing) {
  PicturesOptions options;
  options.path = "shapes";
  options.generated = 4000;
  const auto shapes = open_pictures(options);
  const Recogniser recogniser = train_recogniser(*shapes, options.shape, 400, 150, 3);
  EXPECT_GT(recogniser.accuracy, 0.9);
  const Recogniser untrained = train_recogniser(*shapes, options.shape, 400, 0, 3);
  EXPECT_LT(untrained.accuracy, 0.6);
  EXPECT_EQ(recogniser.classes_of(at::zeros({5, 3, 32, 32})).sizes(), at::IntArrayRef({5}));
  EXPECT_NE(error_of([&] { train_recogniser(*shapes, options.shape, 4000, 1, 3); }).find("too few"), std::string::npos);
}

// Generated shapes of which some cannot be read: those from one place to another in the order of the shuffle.
class Damaged : public Pictures {
 public:
  static constexpr int64_t kCount = 300;
  static constexpr uint64_t kSeed = 3;
  static PicturesOptions options() {
    PicturesOptions options;
    options.path = "shapes";
    options.generated = kCount;
    options.shape = {1, 1, 16, 16};
    return options;
  }
  Damaged(int64_t begin, int64_t end) : shapes_(open_pictures(options())) {
    for (int64_t i = begin; i < end; ++i) bad_.insert(shuffled(i, kCount, kSeed, 0));
  }
  int64_t count() const override { return kCount; }
  int64_t label(int64_t index) const override { return shapes_->label(index); }
  const std::vector<std::string>& classes() const override { return shapes_->classes(); }
  at::Tensor read(int64_t index, const PictureBand& band) const override {
    if (bad_.contains(index)) throw UserError(cat("picture ", index, " is damaged"));
    return shapes_->read(index, band);
  }
  std::string name(int64_t index) const override { return shapes_->name(index); }
  std::string describe() const override { return shapes_->describe(); }
  std::string fingerprint() const override { return shapes_->fingerprint(); }

  // A classifier with the last 40 held out, after two batches, which are 0 to 255.
  Recogniser recogniser(bool skip_bad = true) const {
    return train_recogniser(*this, options().shape, 40, 2, kSeed, skip_bad);
  }

 private:
  std::shared_ptr<const Pictures> shapes_;
  std::set<int64_t> bad_;
};

TEST(Recogniser, LeavesOutWhatCannotBeReadAndSaysSo) {
  const Recogniser whole_batch = Damaged(0, 128).recogniser();
  EXPECT_EQ(whole_batch.skipped.size(), 128u);
  const auto& [index, problem] = *whole_batch.skipped.begin();
  EXPECT_EQ(problem, cat("picture ", index, " is damaged"));
  // Others are held out in their place.
  const Recogniser all_held_out = Damaged(260, 300).recogniser();
  EXPECT_EQ(all_held_out.skipped.size(), 40u);
  EXPECT_GE(all_held_out.accuracy, 0);  // not NaN
  EXPECT_NE(error_of([] { Damaged(0, 128).recogniser(false); }).find("is damaged"), std::string::npos);
  for (const auto& [begin, end] : {std::pair(0, 300), std::pair(0, 299), std::pair(1, 300)}) {
    const std::string error = error_of([&] { Damaged(begin, end).recogniser(); });
    EXPECT_NE(error.find("too few pictures can be read"), std::string::npos) << error;
    EXPECT_NE(error.find("is damaged"), std::string::npos) << error;
  }
}

}  // namespace
}  // namespace startrail

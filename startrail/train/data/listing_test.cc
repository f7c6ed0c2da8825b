#include "startrail/train/data/listing.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "startrail/base/testing.h"
#include "startrail/train/data/pictures/pictures.h"
#include "startrail/train/data/tokens/corpus.h"
#include "startrail/train/data/tokens/testing.h"
#include "startrail/train/store/tensor_file.h"

namespace startrail {
namespace {

// Rank 0's answers, kept for others, which then look at their own disks.
class Told {
 public:
  Listing first() {
    return {[this](const auto& make) { return answers_.emplace_back(make()); }, false};
  }
  Listing other(bool check) {
    asked_ = 0;
    return {[this](const auto&) { return answers_.at(asked_++); }, check};
  }

 private:
  std::vector<std::string> answers_;
  size_t asked_ = 0;
};

TEST(Listing, GivesEveryoneRankZerosFiles) {
  const TempFolder folder;
  folder.write("data/a.txt", "one two three");
  folder.write("data/b\xff.txt", "four five");  // a name that is no UTF-8
  Told told;
  CorpusOptions options{.path = folder.path("data"), .validation_path = {}, .validation = 0, .listing = told.first()};
  const Corpus mine = open_data(options).training;
  folder.write("data/c.txt", "rank 0 did not see this");
  options.listing = told.other(true);
  const Corpus theirs = open_data(options).training;
  EXPECT_EQ(theirs.tokens(), mine.tokens());
  EXPECT_EQ(theirs.fingerprint(), mine.fingerprint());
  EXPECT_EQ(theirs.describe(), mine.describe());
}

TEST(Listing, GivesEveryoneRankZerosDocuments) {
  const TempFolder folder;
  TokenFolder written;
  written.type = "uint32";
  written.vocabulary = 100'000;
  written.end_token = 5;
  add_documents(folder, "data", "a.bin", {{1, 2}, {3}, {70'000, 4}, {6, 7, 8}}, written);
  Told told;
  CorpusOptions options{.path = folder.path("data"),
                        .validation_path = {},
                        .validation = 0.5,
                        .vocabulary = 100'000,
                        .listing = told.first()};
  const Corpora mine = open_data(options);
  options.listing = told.other(true);
  const Corpora theirs = open_data(options);
  EXPECT_EQ(theirs.summary, mine.summary);
  EXPECT_EQ(fingerprint(theirs), fingerprint(mine));
  ASSERT_EQ(theirs.training.tokens(), mine.training.tokens());
  for (int64_t i = 0; i < mine.training.tokens(); ++i) {
    int64_t one = 0, other = 0;
    mine.training.read(i, 1, 1, &one);
    theirs.training.read(i, 1, 1, &other);
    EXPECT_EQ(one, other);
  }
}

TEST(Listing, SeesWhatIsMissingOrShorterOnAnotherHost) {
  const TempFolder folder;
  const std::string text = folder.write("data/a.txt", "one two three");
  Told told;
  CorpusOptions options{.path = folder.path("data"), .validation_path = {}, .validation = 0, .listing = told.first()};
  open_data(options);
  const auto error = [&] {
    options.listing = told.other(true);
    return error_of([&] { open_data(options); });
  };
  folder.write("data/a.txt", "one");
  EXPECT_NE(error().find("a.txt has 3 bytes and at rank 0 13; put it on a folder that all hosts share"),
            std::string::npos)
      << error();
  std::filesystem::remove(text);
  EXPECT_NE(error().find("a.txt cannot be read (No such file or directory)"), std::string::npos) << error();
  options.listing = told.other(false);  // another rank of that host looks
  EXPECT_EQ(error_of([&] { open_data(options); }), "no error");
}

TEST(Listing, CarriesPicturesAndLatents) {
  const TempFolder folder;
  const at::Tensor image = at::full({4, 4, 3}, 100, at::kByte);
  std::filesystem::create_directories(folder.path("images/x"));
  write_png(folder.path("images/x/a.png"), image);
  Told told;
  PicturesOptions options{.path = folder.path("images"), .shape = {3, 1, 4, 4}, .without = {}, .listing = told.first()};
  const auto mine = open_pictures(options);
  options.listing = told.other(true);
  const auto theirs = open_pictures(options);
  EXPECT_EQ(theirs->fingerprint(), mine->fingerprint());
  EXPECT_EQ(theirs->classes(), mine->classes());
  EXPECT_EQ(theirs->describe(), mine->describe());
  const PictureBand all{0, 1, 0, 4};
  EXPECT_TRUE(at::equal(theirs->read(0, all), mine->read(0, all)));

  std::filesystem::create_directories(folder.path("latents/x"));
  const std::string file = folder.path("latents/x/a.safetensors");
  const int64_t begin = make_tensor_file(file, {{"one", at::kFloat, {4, 2, 2}}, {"two", at::kFloat, {4, 2, 2}}});
  write_at(file, begin, at::arange(32, at::kFloat));
  Told of_latents;
  PicturesOptions latents{
      .path = folder.path("latents"), .shape = {4, 1, 2, 2}, .without = {}, .listing = of_latents.first()};
  const auto first = open_pictures(latents);
  latents.listing = of_latents.other(true);
  const auto other = open_pictures(latents);
  ASSERT_EQ(other->count(), 2);
  EXPECT_EQ(other->fingerprint(), first->fingerprint());
  for (int64_t i = 0; i < 2; ++i) EXPECT_TRUE(at::equal(other->read(i, {0, 1, 0, 2}), first->read(i, {0, 1, 0, 2})));
}

}  // namespace
}  // namespace startrail

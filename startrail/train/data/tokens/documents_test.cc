#include "startrail/train/data/tokens/documents.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <set>

#include "startrail/base/random.h"
#include "startrail/train/data/tokens/testing.h"

namespace startrail {
namespace {

using Documents = std::vector<std::vector<uint32_t>>;
constexpr uint32_t kEnd = 7;

Documents make_documents(uint64_t seed, int count, uint64_t longest) {
  Documents documents;
  for (uint64_t i = 0; i < static_cast<uint64_t>(count); ++i) {
    documents.push_back({static_cast<uint32_t>(8 + 10'000 * seed + i)});  // no two are the same
    for (uint64_t k = 0; k < mix(seed, i) % longest + 1; ++k)
      documents.back().push_back(static_cast<uint32_t>(8 + mix(mix(seed, i), k) % 60'000));
  }
  return documents;
}

// Files of documents in a folder, which `hold_out` goes through.
class Files {
 public:
  explicit Files(int64_t token_bytes) : token_bytes_(token_bytes) {}

  void add(const Documents& documents, bool ends = true) {
    std::vector<uint32_t> all;
    for (const auto& document : documents) {
      all.insert(all.end(), document.begin(), document.end());
      all.push_back(kEnd);
    }
    if (!ends) all.pop_back();
    names_.push_back(cat(1000 + names_.size()));
    folder_.write(names_.back(),
                  token_bytes_ == 4 ? wide_bytes(all) : token_bytes(std::vector<uint16_t>(all.begin(), all.end())));
    parts_.push_back({0, static_cast<int64_t>(all.size()), static_cast<int64_t>(row_.size())});
    row_.insert(row_.end(), all.begin(), all.end());
  }

  HeldOut hold_out(double share, const std::filesystem::path& cache = "") const {
    const FilePool pool(folder_.path(), names_);
    return hold_out_documents({pool, parts_, token_bytes_, kEnd}, share, cache);
  }

  // The documents held out, without their ends.
  std::set<std::vector<uint32_t>> held(double share) const {
    std::set<std::vector<uint32_t>> found;
    const HeldOut held = hold_out(share);
    std::vector<uint32_t> document;
    for (int64_t i = 0; i < held.ranges.tokens(); ++i) {
      const uint32_t token = row_[static_cast<size_t>(held.ranges.inside(i).first)];
      if (token != kEnd) document.push_back(token);
      if (token == kEnd) found.insert(std::exchange(document, {}));
    }
    if (!document.empty()) found.insert(document);
    EXPECT_EQ(static_cast<int64_t>(found.size()), held.held);
    return found;
  }

  std::string path(size_t file) const { return folder_.path(names_[file]); }

 private:
  int64_t token_bytes_;
  TempFolder folder_;
  std::vector<std::string> names_;
  std::vector<DocumentFile> parts_;
  std::vector<uint32_t> row_;
};

TEST(Documents, StayOnTheirSideWhateverIsAdded) {
  const Documents first = make_documents(1, 3000, 40), second = make_documents(2, 2000, 40);
  Files before(2), after(2), wide(4);
  before.add(first);
  after.add(second);  // now the first come later
  after.add(first);
  wide.add(first);
  for (const double share : {0.02, 0.3}) {
    const auto held = before.held(share), now = after.held(share);
    EXPECT_NEAR(static_cast<double>(held.size()) / 3000, share, 0.03);
    EXPECT_EQ(held, wide.held(share));  // however wide the ids are
    EXPECT_TRUE(std::includes(now.begin(), now.end(), held.begin(), held.end()));
    for (const auto& document : first) EXPECT_EQ(held.contains(document), now.contains(document));
  }
  EXPECT_EQ(after.hold_out(0.3).documents, 5000);
}

// Blocks are 64 Ki tokens and pieces 8 Mi: documents lie across both, and one is longer than a piece.
TEST(Documents, AreWholeAcrossBlocksAndPieces) {
  Documents documents = make_documents(3, 60, 150'000);
  documents.insert(documents.begin() + 40, std::vector<uint32_t>(9'000'000, 9));
  documents.push_back({11, 12});
  Files together(4), apart(2);  // as one file, and with a file for each
  together.add(documents, /*ends=*/false);
  for (const auto& document : documents) apart.add({document}, &document != &documents.back());
  const HeldOut held = together.hold_out(0.5);
  EXPECT_EQ(held.documents, 62);
  EXPECT_GT(held.held, 15);
  EXPECT_EQ(held.pack(), apart.hold_out(0.5).pack());
}

TEST(Documents, LeaveBothSidesSomething) {
  Files two(2);
  two.add({{1, 2}, {3, 4}});
  for (const double share : {1e-9, 0.5, 1 - 1e-9}) EXPECT_EQ(two.hold_out(share).held, 1) << share;
  Files one(2);
  one.add({{1, 2, 3}});
  EXPECT_EQ(one.hold_out(0.9).held, 0);
  EXPECT_EQ(one.hold_out(0.9).documents, 1);
  Files huge(2);  // most of the data is no sample of it
  huge.add({{1}, std::vector<uint32_t>(1000, 2), {3}});
  EXPECT_LE(huge.hold_out(1 - 1e-9).ranges.tokens(), 4);
}

TEST(Documents, AreLookedForOnce) {
  const TempFolder cache;
  Files files(2);
  files.add(make_documents(5, 500, 30));
  const std::string place = cache.path("made/by it");
  const std::string first = files.hold_out(0.2, place).pack();
  EXPECT_EQ(first, files.hold_out(0.2).pack());
  const auto time = std::filesystem::last_write_time(files.path(0));
  const auto bytes = std::filesystem::file_size(files.path(0));
  std::filesystem::resize_file(files.path(0), 0);  // so that it would be seen if it were read again
  std::filesystem::resize_file(files.path(0), bytes);
  std::filesystem::last_write_time(files.path(0), time);
  EXPECT_EQ(files.hold_out(0.2, place).pack(), first);
  EXPECT_NE(files.hold_out(0.3, place).pack(), first);
  std::filesystem::last_write_time(files.path(0), time + std::chrono::seconds(1));
  EXPECT_NE(files.hold_out(0.2, place).pack(), first);
  std::filesystem::last_write_time(files.path(0), time);
  for (const auto& entry : std::filesystem::directory_iterator(place))  // damaged: not believed
    std::filesystem::resize_file(entry.path(), entry.file_size() - 1);
  EXPECT_NE(files.hold_out(0.2, place).pack(), first);
  EXPECT_EQ(files.hold_out(0.2, "/dev/null/none").documents, files.hold_out(0.2).documents);
}

}  // namespace
}  // namespace startrail

#include "startrail/train/data/tokens/token_source.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <map>
#include <mutex>
#include <set>

#include "startrail/base/testing.h"
#include "startrail/run/comm/ranks.h"
#include "startrail/train/data/tokens/testing.h"

namespace startrail {
namespace {

std::string words(int count) {
  std::string text;
  for (int i = 0; i < count; ++i) text += cat("w", i * 7919 % 1000, " ");
  return text;
}

Corpora open(const std::string& path, double validation) {
  CorpusOptions options;
  options.path = path;
  options.validation = validation;
  return open_data(options);
}

// The example as ranks hold it, put back in order: (input, target) by position, and the mask they agree on.
struct Whole {
  std::map<int64_t, std::pair<int64_t, int64_t>> tokens;
  std::vector<int64_t> documents;
};

Whole read_on_ranks(const Source& source, int64_t index, int ranks, Order layout, bool validation = false) {
  Whole whole;
  std::mutex mutex;
  AttentionOptions options;
  options.grid.ring = ranks;
  options.order = layout;
  run_ranks(ranks, 2, [&](const std::shared_ptr<Group>& group) {
    const Example e = validation ? *source.validation(index, layout, *group) : source.training(index, layout, *group);
    const Sequence sequence = make_sequence(e, options, group, true);
    std::lock_guard lock(mutex);
    EXPECT_TRUE(e.mask.causal);
    EXPECT_TRUE(whole.documents.empty() || whole.documents == e.mask.documents);
    whole.documents = e.mask.documents;
    EXPECT_EQ(e.input.size(0), chunk_tokens({layout, e.tokens, ranks}, group->rank()));
    for (int64_t i = 0; i < e.input.size(0); ++i)
      EXPECT_TRUE(whole.tokens
                      .emplace(sequence.positions[i].item<int64_t>(),
                               std::pair(e.input[i].item<int64_t>(), e.target[i].item<int64_t>()))
                      .second);
  });
  return whole;
}

TEST(TokenSource, GivesEveryRankItsOwnPieces) {
  const TempFolder folder;
  for (int file = 0; file < 6; ++file) folder.write(cat("d/", file), words(60 + file));
  for (bool documents : {false, true}) {
    const TokenSource source(open(folder.path("d"), 0.2), {.tokens = 301, .documents = documents});
    for (bool validation : {false, true}) {
      const Whole one = read_on_ranks(source, 0, 1, Order::contiguous, validation);
      EXPECT_EQ(one.documents.empty(), !documents);
      int64_t sum = 0;
      for (int64_t length : one.documents) sum += length;
      EXPECT_EQ(sum, documents ? static_cast<int64_t>(one.tokens.size()) : 0);
      // Targets are the next inputs, but for those that would foretell another document.
      int64_t position = 0, next_end = documents ? one.documents[0] - 1 : -1;
      size_t document = 0;
      for (const auto& [place, token] : one.tokens) {
        EXPECT_EQ(place, position);
        if (documents && place == next_end) {
          EXPECT_TRUE(token.second == -1 || document + 1 == one.documents.size());
          if (++document < one.documents.size()) next_end += one.documents[document];
        } else if (const auto next = one.tokens.find(place + 1); next != one.tokens.end()) {
          EXPECT_EQ(token.second, next->second.first);
        }
        ++position;
      }
      for (int ranks : {2, 5, 8})
        for (Order layout : {Order::contiguous, Order::zigzag, Order::striped}) {
          const Whole many = read_on_ranks(source, 0, ranks, layout, validation);
          EXPECT_EQ(many.tokens, one.tokens) << ranks << to_text(layout);
          EXPECT_EQ(many.documents, one.documents);
        }
    }
  }
}

TEST(TokenSource, CoversAnEpochOnceInAnOrderOfItsOwn) {
  const TempFolder folder;
  folder.write("text", words(1000));
  const Corpora data = open(folder.path("text"), 0);
  const TokenSource source(data, {.tokens = 50, .seed = 3}), other(data, {.tokens = 50, .seed = 4});
  const int64_t windows = source.epoch();
  ASSERT_EQ(windows, (data.training.tokens() - 1) / 50);
  const auto first_bytes = [&](const TokenSource& from, int64_t index) {
    std::string text;
    for (const auto& [place, token] : read_on_ranks(from, index, 1, Order::contiguous).tokens)
      text += static_cast<char>(token.first);
    return text;
  };
  std::set<std::string> seen;
  std::vector<std::string> one, two, again, differently;
  for (int64_t i = 0; i < windows; ++i) {
    one.push_back(first_bytes(source, i));
    two.push_back(first_bytes(source, windows + i));
    differently.push_back(first_bytes(other, i));
    EXPECT_TRUE(seen.insert(one.back()).second) << "twice in an epoch";
  }
  EXPECT_NE(one, two);
  EXPECT_NE(one, differently);
  EXPECT_EQ(first_bytes(TokenSource(data, {.tokens = 50, .seed = 3}), windows / 2), one[windows / 2]);  // from anywhere
  EXPECT_EQ(source.validation_count(), 0);
}

TEST(TokenSource, RefusesDataShorterThanASequence) {
  const TempFolder folder;
  folder.write("text", words(20));
  const Corpora data = open(folder.path("text"), 0);
  const std::string error = error_of([&] { TokenSource(data, {.tokens = 4096}); });
  EXPECT_NE(error.find("set train.tokens to"), std::string::npos) << error;
  TokenSource(data, {.tokens = data.training.tokens() - 1});
  folder.write("t.bin", token_bytes({1, 2, 3, 4, 5, 6}));
  const Corpora tokens = open(folder.path("t.bin"), 0);
  EXPECT_NE(error_of([&] { TokenSource(tokens, {.tokens = 4, .documents = true}); }).find("data.end_token"),
            std::string::npos);
}

}  // namespace
}  // namespace startrail

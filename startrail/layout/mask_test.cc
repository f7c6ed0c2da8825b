#include "startrail/layout/mask.h"

#include <gtest/gtest.h>

#include <cstdlib>

#include "startrail/base/testing.h"

namespace startrail {
namespace {

size_t document_of(const Mask& mask, int64_t token) {
  size_t document = 0;
  for (int64_t end = 0; document < mask.documents.size(); ++document) {
    end += mask.documents[document];
    if (token < end) break;
  }
  return document;
}

// What the members of Mask say, one after the other.
bool sees(const Mask& mask, int64_t tokens, int64_t q, int64_t k) {
  const int64_t real = tokens - mask.padding;
  if (q >= real || k >= real) return false;
  if (document_of(mask, q) != document_of(mask, k)) return false;
  if (mask.window > 0 && std::abs(q - k) >= mask.window) return false;
  if (mask.causal && k > q && k >= mask.prefix) return false;
  return true;
}

// Every combination of members that has a meaning.
std::vector<Mask> every_mask(int64_t tokens) {
  std::vector<Mask> masks;
  for (int64_t padding : {int64_t{0}, int64_t{1}, tokens / 3, tokens - 1}) {
    const int64_t real = tokens - padding;
    std::vector<std::vector<int64_t>> documents = {{}, {real}};
    if (real >= 4) documents.push_back({real - 1, 1});
    if (real >= 9) documents.push_back({1, 3, real - 8, 4});
    for (bool causal : {false, true})
      for (int64_t window : {int64_t{0}, int64_t{1}, int64_t{2}, int64_t{5}, tokens, INT64_MAX})
        for (const auto& lengths : documents) masks.push_back({causal, window, lengths, 0, padding});
    for (int64_t prefix : {int64_t{1}, tokens / 2, tokens}) masks.push_back({true, 0, {}, prefix, padding});
  }
  return masks;
}

std::string refusal(const Mask& mask, int64_t query_tokens = 10, int64_t key_tokens = 10) {
  return error_of([&] { check_mask(mask, query_tokens, key_tokens); });
}

TEST(Band, SeesWhatTheMaskSays) {
  for (int64_t tokens : {2, 3, 10, 17, 31})
    for (const Mask& mask : every_mask(tokens)) {
      const Band band(mask, tokens, tokens);
      for (int64_t q = 0; q < tokens; ++q) {
        const Span span = band.keys_of(q);
        for (int64_t k = 0; k < tokens; ++k)
          ASSERT_EQ(span.begin <= k && k < span.end, sees(mask, tokens, q, k))
              << to_text(mask) << " of " << tokens << ", query " << q << ", key " << k;
      }
    }
}

TEST(Band, BoundsNeverFall) {
  for (int64_t tokens : {2, 3, 10, 17, 31})
    for (const Mask& mask : every_mask(tokens)) {
      const Band band(mask, tokens, tokens);
      Span last;
      for (int64_t q = 0; q < tokens; ++q) {
        const Span span = band.keys_of(q);
        ASSERT_LE(span.begin, span.end) << to_text(mask) << ", query " << q;
        ASSERT_LE(last.begin, span.begin) << to_text(mask) << ", query " << q;
        ASSERT_LE(last.end, span.end) << to_text(mask) << ", query " << q;
        last = span;
      }
    }
}

TEST(Band, FullMaskMayHaveUnequalLengths) {
  const Band band({}, 5, 9);
  for (int64_t q = 0; q < 5; ++q) {
    EXPECT_EQ(band.keys_of(q).begin, 0);
    EXPECT_EQ(band.keys_of(q).end, 9);
  }
}

TEST(Band, RefusesWhatCheckMaskRefuses) { EXPECT_THROW(Band({.window = -1}, 10, 10), UserError); }

TEST(Mask, FullSeesEverything) {
  EXPECT_TRUE(Mask{}.full());
  EXPECT_FALSE(Mask{.causal = true}.full());
  EXPECT_FALSE(Mask{.window = 1}.full());
  EXPECT_FALSE(Mask{.documents = {10}}.full());
  EXPECT_FALSE(Mask{.padding = 1}.full());
}

TEST(Mask, PrintsItsMembers) {
  EXPECT_EQ(to_text(Mask{}), "full");
  EXPECT_EQ(to_text(Mask{true, 512, {1000, 96, 3000}, 0, 4}), "causal, window 512, documents 1000+96+3000, padding 4");
  EXPECT_EQ(to_text(Mask{.causal = true, .prefix = 7}), "causal, prefix 7");
}

TEST(Mask, AcceptsEveryCombinationWithAMeaning) {
  for (int64_t tokens : {2, 10, 31})
    for (const Mask& mask : every_mask(tokens)) EXPECT_EQ(refusal(mask, tokens, tokens), "no error") << to_text(mask);
  EXPECT_EQ(refusal({}, 5, 9), "no error");
}

TEST(Mask, RefusesUnequalLengths) {
  EXPECT_EQ(refusal({.causal = true, .window = 3}, 5, 9),
            "mask 'causal, window 3' needs as many keys as queries, but there are 5 queries and 9 keys; only mask full "
            "may differ");
}

TEST(Mask, RefusesNumbersOutOfRange) {
  EXPECT_EQ(refusal({.window = -1}), "window -1 is negative: give 1 or more, or 0 for none");
  EXPECT_EQ(refusal({.causal = true, .prefix = -2}), "prefix -2 does not fit 10 tokens: give 0 to 10");
  EXPECT_EQ(refusal({.causal = true, .prefix = 11}), "prefix 11 does not fit 10 tokens: give 0 to 10");
  EXPECT_EQ(refusal({.padding = -1}), "padding -1 does not fit 10 tokens: give 0 to 9");
  EXPECT_EQ(refusal({.padding = 10}), "padding 10 does not fit 10 tokens: give 0 to 9");
}

TEST(Mask, RefusesAPrefixWithoutMeaning) {
  EXPECT_EQ(refusal({.prefix = 3}), "prefix 3 has no meaning with mask full, where every key is seen: use mask causal");
  const std::string joined = "prefix 3 cannot be joined with a window or documents: choose one of them";
  EXPECT_EQ(refusal({.causal = true, .window = 4, .prefix = 3}), joined);
  EXPECT_EQ(refusal({.causal = true, .documents = {4, 6}, .prefix = 3}), joined);
}

TEST(Mask, RefusesDocumentsThatDoNotAddUp) {
  EXPECT_EQ(refusal({.documents = {4, 0, 6}}), "a document of 0 tokens is not possible: give lengths of 1 to 10");
  EXPECT_EQ(refusal({.documents = {4, 5}}),
            "documents add up to 9 tokens, but there are 10: they must be equal (padding may fill the rest)");
  EXPECT_EQ(refusal({.documents = {4, 5}, .padding = 2}),
            "documents add up to 9 tokens plus padding 2, but there are 10: they must be equal (padding may fill the "
            "rest)");
}

}  // namespace
}  // namespace startrail

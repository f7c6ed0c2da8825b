#include "startrail/train/data/tokens/ngram.h"

#include <gtest/gtest.h>

#include <cmath>
#include <map>

#include "startrail/base/random.h"
#include "startrail/base/testing.h"
#include "startrail/train/data/tokens/testing.h"

namespace startrail {
namespace {

Corpora open_texts(const TempFolder& folder, std::string_view training, std::string_view validation) {
  CorpusOptions options;
  options.path = folder.write("training.txt", training);
  options.validation_path = folder.write("validation.txt", validation);
  return open_data(options);
}

TEST(Ngram, EntropyOfCounts) {
  const TempFolder folder;
  const Corpora data = open_texts(folder, "aabc", "aaaa");
  EXPECT_NEAR(unigram_entropy(data.training), 0.5 * std::log(2.0) + 0.5 * std::log(4.0), 1e-12);
  EXPECT_EQ(unigram_entropy(data.validation), 0);
}

// Counted by hand on "abab" with a vocabulary of 4. Contexts: "" is followed 4 times by 2 different tokens, "a" twice
// by 1, "b" once by 1, "ab" once by 1, "ba" once by 1.
TEST(Ngram, LossOfATinyCase) {
  const TempFolder folder;
  const Corpora data = open_texts(folder, "abab", "abc");
  const double a = (2 + 2 * 0.25) / 6, b = a, c = 2 * 0.25 / 6;
  const double b_after_a = (2 + b) / 3, c_after_b = (0 + c) / 2, c_after_ab = (0 + c_after_b) / 2;
  EXPECT_NEAR(ngram_loss(data.training, data.validation, 1, 4), -std::log(a * b * c) / 3, 1e-12);
  EXPECT_NEAR(ngram_loss(data.training, data.validation, 2, 4), -std::log(a * b_after_a * c_after_b) / 3, 1e-12);
  EXPECT_NEAR(ngram_loss(data.training, data.validation, 3, 4), -std::log(a * b_after_a * c_after_ab) / 3, 1e-12);
}

TEST(Ngram, AnUnseenContextIsPassedOver) {
  const TempFolder folder;
  const Corpora data = open_texts(folder, "abab", "xa");
  const double a = (2 + 2 * 0.25) / 6, x = 2 * 0.25 / 6;
  for (int n = 1; n <= 3; ++n)
    EXPECT_NEAR(ngram_loss(data.training, data.validation, n, 4), -std::log(x * a) / 2, 1e-12) << n;
}

// The same sums with a map, over a text longer than a block: counts must not break at the blocks' borders.
double naive_loss(const std::string& training, const std::string& validation, size_t n) {
  std::map<std::string, double> counts, totals, distinct;
  for (size_t i = 0; i < training.size(); ++i)
    for (size_t k = 0; k < n && k <= i; ++k) {
      const std::string context = training.substr(i - k, k);
      if (++counts[training.substr(i - k, k + 1)] == 1) ++distinct[context];
      ++totals[context];
    }
  double loss = 0;
  for (size_t i = 0; i < validation.size(); ++i) {
    double p = 1.0 / 256;
    for (size_t k = 0; k < n && k <= i; ++k) {
      const std::string context = validation.substr(i - k, k);
      if (totals[context] == 0) continue;
      p = (counts[validation.substr(i - k, k + 1)] + distinct[context] * p) / (totals[context] + distinct[context]);
    }
    loss -= std::log(p);
  }
  return loss / static_cast<double>(validation.size());
}

// A made-up language: each letter follows from the two before it, mostly.
std::string make_text(size_t length, uint64_t seed) {
  std::string text = "ab";
  while (text.size() < length) {
    const uint64_t noise = mix(seed, text.size());
    const uint64_t rule =
        mix(static_cast<uint64_t>(text[text.size() - 1]), static_cast<uint64_t>(text[text.size() - 2]));
    text += static_cast<char>('a' + (noise % 4 == 0 ? (noise >> 8) % 26 : rule % 26));
  }
  return text;
}

TEST(Ngram, AgreesWithANaiveCountAndLongerContextsHelp) {
  const TempFolder folder;
  const std::string training = make_text(150'000, 1), validation = make_text(70'000, 2);
  const Corpora data = open_texts(folder, training, validation);
  double losses[4];
  for (int n = 1; n <= 3; ++n) {
    losses[n] = ngram_loss(data.training, data.validation, n, 256);
    EXPECT_NEAR(losses[n], naive_loss(training, validation, static_cast<size_t>(n)), 1e-9) << n;
  }
  EXPECT_LT(losses[3], losses[2] - 0.1);
  EXPECT_LT(losses[2], losses[1] - 0.1);
  EXPECT_NEAR(losses[1], unigram_entropy(data.validation), 0.05);
}

TEST(Ngram, CountsTokensBeyondBytes) {
  const TempFolder folder;
  std::vector<uint16_t> cycle;
  for (int i = 0; i < 3000; ++i) cycle.push_back(static_cast<uint16_t>(65'535 - 7 * (i % 100)));
  CorpusOptions options;
  options.vocabulary = 65'536;
  options.path = options.validation_path = folder.write("cycle.bin", token_bytes(cycle));
  const Corpora data = open_data(options);
  EXPECT_NEAR(unigram_entropy(data.training), std::log(100.0), 1e-9);
  EXPECT_NEAR(ngram_loss(data.training, data.validation, 1, 65'536), std::log(100.0), 0.1);
  EXPECT_LT(ngram_loss(data.training, data.validation, 2, 65'536), 0.2);  // the next one is certain
  // Ids that take more than 16 bits, of which those below are all the same.
  std::vector<uint32_t> wide;
  for (uint32_t i = 0; i < 3000; ++i) wide.push_back(i % 100 << 16 >> 4 | 5);
  options.vocabulary = 500'000;
  options.path = options.validation_path = folder.write("wide.bin", llmc_file(20240801, 7, 3000, wide_bytes(wide)));
  const Corpora large = open_data(options);
  EXPECT_NEAR(unigram_entropy(large.training), std::log(100.0), 1e-9);
  EXPECT_LT(ngram_loss(large.training, large.validation, 3, 500'000), 0.2);
}

// 40 GB of zeros: only evenly spaced blocks are counted.
TEST(Ngram, TakesASampleOfALongCorpus) {
  const TempFolder folder;
  CorpusOptions options;
  options.path = folder.write("long.bin", token_bytes({3}));
  options.validation_path = folder.write("short.bin", token_bytes({0, 0, 0}));
  std::filesystem::resize_file(options.path, 40'000'000'000);
  const Corpora data = open_data(options);
  EXPECT_NEAR(ngram_loss(data.training, data.validation, 1, 256), 0, 1e-6);
  EXPECT_GT(unigram_entropy(data.training), 0);
}

TEST(Ngram, RefusesWhatHasNoAnswer) {
  const TempFolder folder;
  CorpusOptions options;
  options.path = folder.write("a.txt", "abc");
  options.validation = 0;
  const Corpora data = open_data(options);
  EXPECT_THROW(ngram_loss(data.training, data.validation, 1, 256), InternalError);
  EXPECT_THROW(ngram_loss(data.training, data.training, 4, 256), InternalError);
  EXPECT_THROW(unigram_entropy(data.validation), InternalError);
}

}  // namespace
}  // namespace startrail

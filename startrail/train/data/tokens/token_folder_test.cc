#include "startrail/train/data/tokens/token_folder.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "startrail/base/random.h"
#include "startrail/train/data/tokens/corpus.h"
#include "startrail/train/data/tokens/testing.h"

namespace startrail {
namespace {

using Tokens = std::vector<int64_t>;

const TokenFolder kTold{.type = "uint32",
                        .vocabulary = 128'256,
                        .end_token = 128'001,
                        .tokenizer = "some",
                        .tokenizer_hash = "0123",
                        .files = {}};

Corpora open(const std::string& path, double validation = 0, int64_t vocabulary = 128'256, int64_t end_token = -1) {
  CorpusOptions options;
  options.path = path;
  options.validation = validation;
  options.vocabulary = vocabulary;
  options.end_token = end_token;
  return open_data(options);
}

Tokens read(const Corpus& corpus, int64_t stride = 1) {
  Tokens tokens(static_cast<size_t>((corpus.tokens() + stride - 1) / stride), -1);
  corpus.read(0, static_cast<int64_t>(tokens.size()), stride, tokens.data());
  return tokens;
}

TEST(TokenFolder, IsReadAsItWasWritten) {
  const TempFolder folder;
  add_documents(folder, "data", "b.bin", {{1, 100'000}, {3}}, kTold);
  add_documents(folder, "data", "a.bin", {{5}}, kTold);
  EXPECT_TRUE(is_token_folder(folder.path("data")));
  const TokenFolder same = read_token_folder(folder.path("data"));
  EXPECT_EQ(same.files.size(), 2u);
  EXPECT_EQ(same.files[0].tokens, 5);
  EXPECT_EQ(same.files[0].documents, 2);
  EXPECT_EQ(same.tokenizer_hash, "0123");
  folder.write("data/tokenizer.json", "{}");  // it and tokens.json are no data
  for (const int64_t end_token : {-1, 128'001}) {
    const Corpus corpus = open(folder.path("data"), 0, 128'256, end_token).training;
    EXPECT_EQ(read(corpus), (Tokens{5, 128'001, 1, 100'000, 128'001, 3, 128'001}));
    EXPECT_EQ(read(corpus, 3), (Tokens{5, 100'000, 128'001}));
    EXPECT_EQ(corpus.end_token(), 128'001);
    EXPECT_EQ(corpus.folder(), folder.path("data"));
    EXPECT_EQ(corpus.describe(), "2 token files, 28 B");
  }
  // One of its files is read as the folder says, not as halves.
  EXPECT_EQ(read(open(folder.path("data/b.bin")).training), (Tokens{1, 100'000, 128'001, 3, 128'001}));
}

TEST(TokenFolder, GivesANewModelItsVocabulary) {
  const TempFolder folder;
  add_documents(folder, "data", "a.bin", {{5}}, kTold);
  CorpusOptions options;
  options.path = folder.path("data");
  options.validation = 0;
  options.vocabulary = 50'304;
  const std::string file = folder.path("data/tokens.json");
  EXPECT_EQ(error_of([&] { open_data(options); }),
            file + " is of a vocabulary of 128256, but the model has 50304: tokenize with the model's own tokenizer " +
                "or, for a new model, leave model.vocabulary out");
  options.sets_vocabulary = true;
  EXPECT_EQ(open_data(options).training.vocabulary(), 128'256);
  EXPECT_EQ(open(folder.path("data"), 0, 200'000).training.vocabulary(), 200'000);  // larger: padded
  EXPECT_EQ(error_of([&] { open(folder.path("data"), 0, 128'256, 5); }),
            "data.end_token is 5, but " + file + " says 128001: leave it out");
}

TEST(TokenFolder, RefusesWhatIsNotAsItSays) {
  const TempFolder folder;
  add_documents(folder, "data", "a.bin", {{5, 6}}, kTold);
  const std::string file = folder.path("data/a.bin"), told = folder.path("data/tokens.json");
  const auto refusal = [&] { return error_of([&] { open(folder.path("data")); }); };
  folder.write("data/a.bin", "1234");
  EXPECT_EQ(refusal(), file + " has 4 bytes, but tokens.json says 3 tokens of 4 bytes: tokenize again");
  std::filesystem::remove(file);
  EXPECT_EQ(refusal(), file + " cannot be read (No such file or directory), but tokens.json names it");
  folder.write("data/tokens.json", R"({"version": 2})");
  EXPECT_EQ(refusal(), told + " is of version 2, but this program reads 1");
  folder.write("data/tokens.json", R"({"version": 1})");
  EXPECT_EQ(refusal(), told + " does not describe token files: tokenize again");
  TokenFolder other = kTold;
  write_token_folder(folder.path("data"), other);
  EXPECT_EQ(refusal(), told + " names no tokens: tokenize again");
  other.type = "int8";
  write_token_folder(folder.path("data"), other);
  EXPECT_EQ(refusal(), told + ": type 'int8' is not known; valid: uint16, uint32");
  other = kTold;
  other.files = {{"../a.bin", 1, 1, ""}};
  write_token_folder(folder.path("data"), other);
  EXPECT_EQ(refusal(), told + ": '../a.bin' is not the name of a file in its folder");
}

TEST(TokenFolder, HoldsOutTheSameDocumentsInBothWidths) {
  const TempFolder folder;
  std::vector<std::vector<uint32_t>> documents;
  for (uint64_t i = 0; i < 400; ++i) {
    documents.emplace_back();
    for (uint64_t k = 0; k < mix(i, 0) % 50 + 1; ++k)
      documents.back().push_back(static_cast<uint32_t>(mix(i, k) % 999));
  }
  TokenFolder told = kTold;
  told.end_token = 999;
  told.vocabulary = 1000;
  add_documents(folder, "wide", "a.bin", documents, told);
  told.type = "uint16";
  add_documents(folder, "narrow", "a.bin", documents, told);
  const Corpora wide = open(folder.path("wide"), 0.1), narrow = open(folder.path("narrow"), 0.1);
  EXPECT_EQ(wide.split, "documents");
  EXPECT_EQ(read(wide.training), read(narrow.training));
  EXPECT_EQ(read(wide.validation), read(narrow.validation));
  EXPECT_EQ(read(wide.validation).back(), 999);
  for (const int64_t stride : {2, 7, 64}) {  // as ranks of a striped layout read
    const Tokens all = read(wide.training), some = read(wide.training, stride);
    for (size_t i = 0; i < some.size(); ++i) ASSERT_EQ(some[i], all[i * static_cast<size_t>(stride)]);
  }
  const Tokens validation = read(wide.validation);
  const auto held = std::count(validation.begin(), validation.end(), 999);
  EXPECT_EQ(wide.summary.find("1 token file, "), 0u);
  EXPECT_NE(wide.summary.find(cat(" in 400 documents; held out for validation: ", held, " documents, ")),
            std::string::npos)
      << wide.summary;
  EXPECT_EQ(fingerprint(wide).substr(65), " documents");
  EXPECT_NE(wide.training.fingerprint(), wide.validation.fingerprint());
  EXPECT_EQ(wide.training.fingerprint(), open(folder.path("wide"), 0.1).training.fingerprint());
  EXPECT_NE(wide.training.fingerprint(), open(folder.path("wide"), 0.2).training.fingerprint());
  documents[17][0] ^= 1;
  add_documents(folder, "changed", "a.bin", documents, told);
  EXPECT_NE(narrow.training.fingerprint(), open(folder.path("changed"), 0.1).training.fingerprint());
  // More of it: what was held out still is, and nothing else of what was there.
  add_documents(folder, "narrow", "0.bin", {{1, 2, 3}, {4, 5}, {6}}, told);
  const Corpora more = open(folder.path("narrow"), 0.1);
  EXPECT_GE(more.validation.tokens(), narrow.validation.tokens());
  EXPECT_GE(more.training.tokens(), narrow.training.tokens());
}

TEST(TokenFiles, HeadersSayHowWideTokensAre) {
  const TempFolder folder;
  const std::string wide = folder.write("wide.bin", llmc_file(20240801, 7, 3, wide_bytes({1, 128'001, 65'536})));
  EXPECT_EQ(read(open(wide).training), (Tokens{1, 128'001, 65'536}));
  const std::string narrow = folder.write("narrow.bin", llmc_file(20240520, 1, 2, token_bytes({1, 50'256})));
  EXPECT_EQ(read(open(narrow).training), (Tokens{1, 50'256}));
  EXPECT_EQ(error_of([&] { open(folder.path()); }),
            cat("token files ", folder.path("narrow.bin"),
                " and wide.bin have 2 and 4 bytes a token: give a folder of ", "one kind"));
  const std::string bare = folder.write("bare.bin", wide_bytes({1, 2}));
  EXPECT_EQ(
      error_of([&] { open(bare); }),
      cat("token file ", bare, " has no header, so it would be read as uint16, but ids of the model's ",
          "vocabulary of 128256 need uint32: give a folder that `startrail tokenize` made, or files with llm.c's ",
          "header"));
  EXPECT_EQ(open(bare, 0, 65'536).training.tokens(), 4);
  EXPECT_EQ(open(bare, 0.5, 65'536).split, "tail");
  EXPECT_EQ(open(bare, 0.5, 65'536, 0).split, "documents");
}

}  // namespace
}  // namespace startrail

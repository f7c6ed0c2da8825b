#include "startrail/train/data/tokens/corpus.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <cmath>
#include <map>
#include <set>

#include "startrail/base/random.h"
#include "startrail/base/testing.h"
#include "startrail/base/threads.h"
#include "startrail/train/data/tokens/testing.h"

namespace startrail {
namespace {

namespace fs = std::filesystem;
using Tokens = std::vector<int64_t>;

const std::string kChoices =
    ": give a text file, a folder of text files, a folder that `startrail tokenize` made, a .bin file of tokens, or a "
    "folder of those";

Tokens read(const Corpus& corpus, int64_t first, int64_t count, int64_t stride = 1) {
  Tokens tokens(static_cast<size_t>(count), -1);
  corpus.read(first, count, stride, tokens.data());
  return tokens;
}

// All tokens as text, with '|' for the end token.
std::string text_of(const Corpus& corpus) {
  std::string text;
  for (const int64_t token : read(corpus, 0, corpus.tokens())) text += token == 0 ? '|' : static_cast<char>(token);
  return text;
}

Corpora open_share(const std::string& path, double validation, int64_t vocabulary = 256) {
  CorpusOptions options;
  options.path = path;
  options.validation = validation;
  options.vocabulary = vocabulary;
  return open_data(options);
}

Corpus open_all(const std::string& path, int64_t vocabulary = 256) { return open_share(path, 0, vocabulary).training; }

std::string refusal(const std::string& path) {
  return error_of([&] { open_all(path); });
}

TEST(Corpus, ASingleTextIsItsBytes) {
  const TempFolder folder;
  const Corpora data = open_share(folder.write("a.txt", "h\xc3\xa9llo"), 0);
  EXPECT_EQ(read(data.training, 0, 6), (Tokens{'h', 0xc3, 0xa9, 'l', 'l', 'o'}));
  EXPECT_EQ(data.training.tokens(), 6);
  EXPECT_TRUE(data.training.is_bytes());
  EXPECT_EQ(data.training.end_token(), 0);
  EXPECT_EQ(data.training.describe(), "1 file, 6 B");
  EXPECT_EQ(data.validation.tokens(), 0);
  EXPECT_EQ(data.validation.describe(), "nothing");
}

TEST(Corpus, AFolderIsItsTextsInOrderWithEnds) {
  const TempFolder folder;
  folder.write("b.txt", "two");
  folder.write("a/z.py", "one");
  folder.write("c", "three");
  folder.write("blob", std::string("x\0y", 3));
  folder.write("late", std::string(100'000, 'x') + '\0');
  folder.write("empty.txt", "");
  folder.write(".git/config", "secret");
  folder.write("model.bin", "firmware");
  const Corpus corpus = open_all(folder.path());
  EXPECT_EQ(text_of(corpus), "one|two|three|");
  EXPECT_EQ(corpus.describe(), "3 files, 11 B (1 .bin, 2 binary, 1 empty left out)");
}

TEST(Corpus, ObeysGitignoreAtEveryLevel) {
  const TempFolder folder;
  folder.write(".gitignore", "*.log\n/build/\nsub/b*\n");
  folder.write("a.txt", "A");
  folder.write("x.log", "-");
  folder.write("build/a.txt", "-");
  folder.write("build/deeper/b.txt", "-");
  folder.write("sub/.gitignore", "!keep.log\n/c.txt\n");
  folder.write("sub/build/d.txt", "-");
  folder.write("sub/c.txt", "-");
  folder.write("sub/e/c.txt", "C");
  folder.write("sub/keep.log", "K");
  folder.write("sub/lose.log", "-");
  folder.write("subs/build/f.txt", "F");
  const Corpus corpus = open_all(folder.path());
  EXPECT_EQ(text_of(corpus), "A|C|K|F|");
  EXPECT_EQ(corpus.describe(), "4 files, 4 B (5 ignored by .gitignore left out)");
}

TEST(Corpus, GitignoreEndsWithItsFolder) {
  const TempFolder folder;
  for (const std::string name : {"a", "b", "c"}) {
    folder.write(name + "/.gitignore", name);
    for (const std::string file : {"a", "b", "c"}) folder.write(name + "/" + file, file);
  }
  EXPECT_EQ(text_of(open_all(folder.path())), "b|c|a|c|a|b|");
}

TEST(Corpus, FollowsLinksToFilesButNotToFolders) {
  const TempFolder folder, elsewhere;
  folder.write("data/a.txt", "A");
  fs::create_directory_symlink(folder.path("data"), folder.path("data/loop"));
  fs::create_symlink(elsewhere.write("blob", "B"), folder.path("data/b.txt"));
  fs::create_symlink("nowhere", folder.path("data/broken"));
  fs::create_directory_symlink(folder.path("data"), folder.path("link"));
  EXPECT_EQ(text_of(open_all(folder.path("data"))), "A|B|");
  EXPECT_EQ(text_of(open_all(folder.path("link"))), "A|B|");
}

TEST(Corpus, ReadsTokenFilesWithAndWithoutHeader) {
  const TempFolder folder;
  CorpusOptions options;
  options.vocabulary = 50'257;
  options.validation = 0;
  options.end_token = 50'256;
  for (const std::string& content :
       {token_bytes({1, 50'256, 513}), llmc_file(20240520, 1, 3, token_bytes({1, 50'256, 513}))}) {
    options.path = folder.write("a.bin", content);
    const Corpus corpus = open_data(options).training;
    EXPECT_EQ(read(corpus, 0, corpus.tokens()), (Tokens{1, 50'256, 513}));
    EXPECT_FALSE(corpus.is_bytes());
    EXPECT_EQ(corpus.end_token(), 50'256);
    EXPECT_EQ(corpus.describe(), "1 token file, 6 B");
  }
}

TEST(Corpus, JoinsShardsInOrder) {
  const TempFolder folder;
  folder.write("train_2.bin", token_bytes({20, 21, 22}));
  folder.write("train_1.bin", llmc_file(20240520, 1, 2, token_bytes({10, 11})));
  folder.write(".gitignore", "old_*\n");
  folder.write("old_1.bin", token_bytes({7}));
  folder.write("index", std::string("\0\1", 2));
  const Corpora data = open_share(folder.path(), 0.8);  // the tail reaches into the first shard
  EXPECT_EQ(read(data.training, 0, data.training.tokens()), (Tokens{10}));
  EXPECT_EQ(read(data.validation, 0, data.validation.tokens()), (Tokens{11, 20, 21, 22}));
  EXPECT_EQ(data.training.describe(), "1 token file, 2 B (1 binary, 1 ignored by .gitignore left out)");
  EXPECT_EQ(data.validation.describe(), "2 token files, 8 B");
  EXPECT_EQ(data.training.end_token(), -1);
}

TEST(Corpus, ReadsEveryStrideAcrossFiles) {
  const TempFolder folder;
  Tokens all;
  for (int file = 0; file < 40; ++file) {
    std::string text;
    for (uint64_t i = 0; i < mix(static_cast<uint64_t>(file), 1) % 60 + 1; ++i)
      text += static_cast<char>(1 + mix(static_cast<uint64_t>(file), i) % 255);
    folder.write(cat("f", 100 + file), text);
    for (const char c : text) all.push_back(static_cast<unsigned char>(c));
    all.push_back(0);
  }
  const Corpus corpus = open_all(folder.path());
  const int64_t tokens = corpus.tokens();
  ASSERT_EQ(tokens, static_cast<int64_t>(all.size()));
  for (int64_t stride = 1; stride < 150; ++stride)
    for (int64_t first = 0; first < tokens; first += 37) {
      const int64_t most = (tokens - 1 - first) / stride + 1;
      for (const int64_t count : {int64_t{0}, (most + 1) / 2, most}) {
        Tokens expected;
        for (int64_t i = 0; i < count; ++i) expected.push_back(all[static_cast<size_t>(first + i * stride)]);
        ASSERT_EQ(read(corpus, first, count, stride), expected) << first << " " << count << " " << stride;
      }
    }
}

TEST(Corpus, ReadsAcrossBlocksOfALongFile) {
  const TempFolder folder;
  std::vector<uint16_t> all;
  for (uint64_t i = 0; i < 300'000; ++i) all.push_back(static_cast<uint16_t>(mix(i, 0)));
  const Corpus corpus = open_all(folder.write("a.bin", token_bytes(all)), 65'536);
  for (const int64_t stride : {1, 2, 63, 32'767, 32'768, 40'000, 299'999}) {
    const int64_t count = (299'999 - 5) / stride + 1;
    const Tokens tokens = read(corpus, 5, count, stride);
    for (int64_t i = 0; i < count; ++i)
      ASSERT_EQ(tokens[static_cast<size_t>(i)], all[static_cast<size_t>(5 + i * stride)]) << i << " " << stride;
  }
}

TEST(Corpus, ChecksTheRange) {
  const TempFolder folder;
  const Corpus corpus = open_all(folder.write("a.txt", "0123456789"));
  int64_t out[16];
  EXPECT_NO_THROW(corpus.read(1, 3, 4, out));
  EXPECT_NO_THROW(corpus.read(10, 0, 1, out));
  EXPECT_THROW(corpus.read(2, 3, 4, out), InternalError);
  EXPECT_THROW(corpus.read(-1, 1, 1, out), InternalError);
  EXPECT_THROW(corpus.read(0, 11, 1, out), InternalError);
  EXPECT_THROW(corpus.read(0, -1, 1, out), InternalError);
  EXPECT_THROW(corpus.read(0, 2, 0, out), InternalError);
  EXPECT_THROW(corpus.read(1, INT64_MAX, INT64_MAX, out), InternalError);
}

TEST(Corpus, ThreadsReadAtOnceWithFewFilesOpen) {
  const TempFolder folder;
  Tokens all;
  for (int file = 0; file < 500; ++file) {
    const std::string text = cat("file ", file);
    folder.write(cat(1000 + file), text);
    all.insert(all.end(), text.begin(), text.end());
    all.push_back(0);
  }
  const auto open_files = [] {
    return std::distance(fs::directory_iterator("/proc/self/fd"), fs::directory_iterator());
  };
  const auto before = open_files();
  const Corpora data = open_share(folder.path(), 0);
  const int64_t tokens = data.training.tokens();
  run_threads(8, [&](int thread) {
    for (uint64_t i = 0; i < 500; ++i) {
      const int64_t first = static_cast<int64_t>(mix(static_cast<uint64_t>(thread), i) % static_cast<uint64_t>(tokens));
      const int64_t stride = 1 + static_cast<int64_t>(i % 3), count = std::min<int64_t>(40, (tokens - first) / 3);
      const Tokens got = read(data.training, first, count, stride);
      for (int64_t k = 0; k < count; ++k)
        STARTRAIL_CHECK(got[static_cast<size_t>(k)] == all[static_cast<size_t>(first + k * stride)], first, " ", k);
    }
    STARTRAIL_CHECK(data.training.fingerprint().size() == 32, "one of 32 digits");
  });
  EXPECT_LE(open_files() - before, 64);
}

TEST(Corpus, OpensAHundredGigabytesWithoutLoadingThem) {
  const TempFolder folder;
  const std::string path = folder.write("huge.bin", token_bytes({3}));
  constexpr int64_t kTokens = 50'000'000'000;
  fs::resize_file(path, 2 * kTokens - 2);
  std::ofstream(path, std::ios::binary | std::ios::app) << token_bytes({9});
  const auto resident = [] {
    int64_t total = 0, pages = 0;
    std::ifstream("/proc/self/statm") >> total >> pages;
    return pages * sysconf(_SC_PAGESIZE);
  };
  const int64_t before = resident();
  const auto start = std::chrono::steady_clock::now();
  const Corpora data = open_share(path, 0.01);
  EXPECT_EQ(data.training.tokens() + data.validation.tokens(), kTokens);
  EXPECT_EQ(read(data.training, 0, 2), (Tokens{3, 0}));
  EXPECT_EQ(read(data.validation, data.validation.tokens() - 2, 2), (Tokens{0, 9}));
  EXPECT_EQ(read(data.training, 0, 1000, 40'000'000)[0], 3);
  EXPECT_NE(data.training.fingerprint(), data.validation.fingerprint());
  EXPECT_LT(resident() - before, 50'000'000);
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(5));
}

TEST(Corpus, HoldsOutTheTailOfASingleFile) {
  const TempFolder folder;
  const Corpora data = open_share(folder.write("a/a.txt", "0123456789"), 0.3);
  EXPECT_EQ(text_of(data.training), "0123456");
  EXPECT_EQ(text_of(data.validation), "789");
  const Corpora same = open_share(folder.path(), 0.3);  // the same file as a folder of one: 11 tokens
  EXPECT_EQ(text_of(same.training), "01234567");
  EXPECT_EQ(text_of(same.validation), "89|");
  const Corpora least = open_share(folder.path("a/a.txt"), 0.001);
  EXPECT_EQ(text_of(least.validation), "9");
  const Corpora most = open_share(folder.path("a/a.txt"), 0.999);
  EXPECT_EQ(text_of(most.training), "0");
}

// The names of files are their content, so that a corpus tells which files it holds.
std::set<std::string> documents(const Corpus& corpus) {
  const std::vector<std::string> parts = split(text_of(corpus), '|');
  return {parts.begin(), std::prev(parts.end())};
}

TEST(Corpus, HoldsOutWholeFilesByName) {
  const TempFolder folder;
  const auto write = [&](int i) { folder.write(cat("d", i % 7, "/f", i), cat(i, std::string(50 + i % 200, '.'))); };
  for (int i = 0; i < 400; ++i) write(i);
  for (const double share : {0.02, 0.05, 0.3, 0.9}) {
    const Corpora data = open_share(folder.path(), share);
    const auto training = documents(data.training), validation = documents(data.validation);
    EXPECT_EQ(training.size() + validation.size(), 400u);
    for (const std::string& document : validation) EXPECT_EQ(training.count(document), 0u);
    const auto held = static_cast<double>(data.validation.tokens());
    const double spread = std::sqrt(share * (1 - share) / 400);  // of as many draws
    EXPECT_NEAR(held / (held + static_cast<double>(data.training.tokens())), share, 3 * spread);
    EXPECT_EQ(data.summary.find("400 files"), 0u) << data.summary;
    EXPECT_NE(data.summary.find(cat("held out for validation: ", validation.size(), " files, ")), std::string::npos);
  }
  const Corpora before = open_share(folder.path(), 0.05);
  for (int i = 400; i < 600; ++i) write(i);
  const Corpora after = open_share(folder.path(), 0.05);
  const auto held = documents(before.validation), held_now = documents(after.validation);
  EXPECT_TRUE(std::includes(held_now.begin(), held_now.end(), held.begin(), held.end()));
  for (const std::string& document : documents(before.training)) EXPECT_EQ(held_now.count(document), 0u);
  EXPECT_GT(held_now.size(), held.size());
}

TEST(Corpus, AHugeFileStaysInTraining) {
  for (int start = 0; start < 20; ++start) {
    const TempFolder folder;
    for (int i = 0; i < 20; ++i) folder.write(cat("f", i), std::string(100, 'x'));
    folder.write(cat("huge", start), std::string(100'000, 'x'));
    EXPECT_LT(open_share(folder.path(), 0.3).validation.tokens(), 20 * 101);
    EXPECT_EQ(open_share(folder.path(), 0.000'001).validation.tokens(), 101);  // one file at least
  }
}

TEST(Corpus, BothSidesGetAFile) {
  const TempFolder folder;
  folder.write("a", "aa");
  folder.write("b", "bb");
  for (const double share : {1e-9, 0.5, 0.999})
    EXPECT_EQ(open_share(folder.path(), share).training.tokens(), 3) << share;
}

TEST(Corpus, AValidationPathOverridesTheShare) {
  const TempFolder folder;
  CorpusOptions options;
  options.path = folder.write("a.txt", "training");
  options.validation_path = folder.path("held");
  folder.write("held/b.txt", "validation");
  folder.write("held/b.png", std::string(1, '\0'));
  const Corpora data = open_data(options);
  EXPECT_EQ(text_of(data.training), "training");
  EXPECT_EQ(text_of(data.validation), "validation|");
  EXPECT_EQ(data.validation.describe(), "1 file, 10 B (1 binary left out)");
  options.validation_path = folder.write("c.bin", token_bytes({1}));
  EXPECT_EQ(error_of([&] { open_data(options); }),
            cat("validation path ", options.validation_path, " holds tokens, but ", options.path,
                " holds text: give two of the same kind"));
}

TEST(Corpus, FingerprintTellsWhatItHolds) {
  const TempFolder folder, copy;
  std::map<std::string, std::string> seen;  // fingerprint -> what
  const auto add = [&](const std::string& what, const Corpus& corpus) {
    const auto [place, is_new] = seen.emplace(corpus.fingerprint(), what);
    EXPECT_TRUE(is_new) << what << " has the fingerprint of " << place->second;
  };
  folder.write("a.txt", "one");
  folder.write("b.txt", "two");
  const Corpora halves = open_share(folder.path(), 0.5);
  add("all", open_all(folder.path()));
  add("training", halves.training);
  add("validation", halves.validation);
  add("a as a file", open_all(folder.path("a.txt")));
  add("head of a", open_share(folder.path("a.txt"), 0.3).training);
  add("tail of a", open_share(folder.path("a.txt"), 0.3).validation);
  add("nothing", open_share(folder.path("a.txt"), 0).validation);
  const Corpora same = open_share(folder.write("same", "xxxx"), 0.5);
  add("head of x", same.training);
  add("tail of x", same.validation);
  fs::remove(folder.path("same"));
  folder.write("b.txt", "tow");
  add("other content", open_all(folder.path()));
  fs::rename(folder.path("b.txt"), folder.path("c.txt"));
  add("other name", open_all(folder.path()));
  folder.write("a.txt", "onet");
  folder.write("c.txt", "ow");
  add("other border", open_all(folder.path()));
  copy.write("a.txt", "onet");
  copy.write("c.txt", "ow");
  fs::last_write_time(copy.path("a.txt"), fs::file_time_type::clock::now() - std::chrono::hours(100));
  EXPECT_EQ(open_all(copy.path()).fingerprint(), open_all(folder.path()).fingerprint());
}

TEST(Corpus, FingerprintOfALargeFileSeesItsEnds) {
  const TempFolder folder;
  const auto print = [&](int64_t tokens, int64_t place, uint16_t token) {  // zeros but for this one
    const std::string path = folder.write("a.bin", "");
    fs::resize_file(path, static_cast<uintmax_t>(2 * tokens));
    std::fstream(path, std::ios::binary | std::ios::in | std::ios::out).seekp(2 * place) << token_bytes({token});
    return open_all(path).fingerprint();
  };
  for (const int64_t tokens : {30'000'000, 300'000'000}) {  // hashed whole, and in samples
    const std::set<std::string> prints = {print(tokens, 0, 0), print(tokens + 1, 0, 0), print(tokens, 0, 5),
                                          print(tokens, tokens - 1, 5)};
    EXPECT_EQ(prints.size(), 4u) << tokens;
  }
  EXPECT_NE(print(30'000'000, 12'345'678, 5), print(30'000'000, 0, 0));
}

TEST(Corpus, RefusesPathsWithoutData) {
  const TempFolder folder;
  EXPECT_EQ(refusal(""), "no data path is given" + kChoices);
  const std::string none = folder.path("none");
  EXPECT_EQ(refusal(none), "data path " + none + " does not exist" + kChoices);
  const std::string pipe = folder.path("pipe");
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  EXPECT_EQ(refusal(pipe), "data path " + pipe + " is no file and no folder" + kChoices);
  const std::string empty = folder.write("empty.txt", "");
  EXPECT_EQ(refusal(empty), "data file " + empty + " is empty" + kChoices);
  const std::string binary = folder.write("a.png", std::string("a\0", 2));
  EXPECT_EQ(refusal(binary), "data file " + binary + " is binary, it holds NUL bytes" + kChoices);
  const std::string loop = folder.path("loop");
  fs::create_symlink("loop", loop);
  EXPECT_EQ(refusal(loop), "data path " + loop + " cannot be read: Too many levels of symbolic links");
}

TEST(Corpus, RefusesFoldersWithoutData) {
  const TempFolder folder;
  const std::string start = "data folder " + folder.path() + " has no text and no .bin token files";
  fs::create_directory(folder.path("sub"));
  EXPECT_EQ(refusal(folder.path()), start + kChoices);
  folder.write("sub/a.txt", "");
  EXPECT_EQ(refusal(folder.path()), start + " (1 empty left out)" + kChoices);
  folder.write(".gitignore", "*.md\n");
  folder.write("sub/b.md", "text");
  folder.write("b.md", "text");
  folder.write("c.png", std::string(1, '\0'));
  EXPECT_EQ(refusal(folder.path()), start + " (1 binary, 1 empty, 2 ignored by .gitignore left out)" + kChoices);
}

TEST(Corpus, RefusesTokensThatDoNotBelong) {
  const TempFolder folder;
  const std::string tokens = folder.write("a.bin", llmc_file(20240520, 1, 4, token_bytes({1, 2, 300, 4})));
  const Corpus corpus = open_all(tokens);
  EXPECT_EQ(read(corpus, 0, 2), (Tokens{1, 2}));
  EXPECT_EQ(read(corpus, 1, 2, 2), (Tokens{2, 4}));
  EXPECT_EQ(error_of([&] { read(corpus, 1, 3); }),
            "token 300 at byte 1028 of " + tokens +
                " is not below the vocabulary of 256: set a larger model.vocabulary, or give other data");
  const std::string text = folder.write("a.txt", "caf\xc3\xa9");
  EXPECT_EQ(error_of([&] { read(open_all(text, 128), 0, 5, 1); }),
            "token 195 at byte 3 of " + text +
                " is not below the vocabulary of 128: set a larger model.vocabulary, or give other data");
}

TEST(Corpus, RefusesANulFoundLate) {
  const TempFolder folder;
  const std::string path = folder.write("a.txt", std::string(2'000'002, 'x'));
  const Corpus corpus = open_all(path);
  folder.write("a.txt", std::string(2'000'000, 'x') + '\0' + "x");
  EXPECT_EQ(read(corpus, 1'999'999, 2, 2), (Tokens{'x', 'x'}));
  EXPECT_EQ(error_of([&] { read(corpus, 0, corpus.tokens()); }),
            "NUL at byte 2000000 of " + path + ": text has none, 0 marks the end of a document; leave the file out");
}

TEST(Corpus, RefusesAFileThatShrankOrVanished) {
  const TempFolder folder;
  const std::string path = folder.write("a.txt", "0123456789");
  for (const bool is_open : {true, false}) {
    folder.write("a.txt", "0123456789");
    const Corpus corpus = open_all(path);
    if (is_open) read(corpus, 0, 1);
    fs::resize_file(path, 5);
    EXPECT_EQ(read(corpus, 0, 5), (Tokens{'0', '1', '2', '3', '4'}));
    const std::string shrank = "data file " + path + " shrank while in use: bytes ";
    EXPECT_EQ(error_of([&] { read(corpus, 2, 4); }), shrank + "2 to 6 are needed, but it ends before; restore it");
    EXPECT_EQ(error_of([&] { corpus.fingerprint(); }), shrank + "0 to 10 are needed, but it ends before; restore it");
  }
  const Corpus corpus = open_all(path);
  fs::remove(path);
  EXPECT_EQ(error_of([&] { read(corpus, 0, 1); }), path + " cannot be opened: No such file or directory");
  fs::create_directory(path);
  EXPECT_EQ(error_of([&] { read(corpus, 0, 1); }), path + " cannot be read: Is a directory");
}

TEST(Corpus, RefusesOptionsOutOfRange) {
  const TempFolder folder;
  const std::string path = folder.write("a.txt", "x");
  const auto refused = [&](double validation, int64_t vocabulary, int64_t end_token) {
    return error_of([&] { open_data({path, "", validation, vocabulary, end_token}); });
  };
  EXPECT_EQ(refused(0, 1, -1), "no error");
  EXPECT_EQ(refused(-0.1, 256, -1), "validation -0.1 is not a share: give 0 or more and less than 1");
  EXPECT_EQ(refused(1, 256, -1), "validation 1 is not a share: give 0 or more and less than 1");
  EXPECT_EQ(refused(std::nan(""), 256, -1), "validation nan is not a share: give 0 or more and less than 1");
  EXPECT_EQ(refused(0, 0, -1), "vocabulary 0 cannot hold a token: give 1 or more");
  EXPECT_EQ(refused(0, 100, 100), "end token 100 is not below the vocabulary of 100: give one in it, or -1 for none");
  EXPECT_EQ(refused(0, 100, -2), "end token -2 is not below the vocabulary of 100: give one in it, or -1 for none");
  EXPECT_EQ(refused(0.5, 256, -1),
            "validation 0.5 cannot be held out of 1 token: give more data, a validation path, or 0");
}

}  // namespace
}  // namespace startrail

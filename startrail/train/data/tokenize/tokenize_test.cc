#include "startrail/train/data/tokenize/tokenize.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>

#include "startrail/base/testing.h"
#include "startrail/train/data/tokenize/journal.h"
#include "startrail/train/data/tokenize/testing.h"
#include "startrail/train/tokenizer/tokenizer.h"

namespace startrail {
namespace {

namespace fs = std::filesystem;

class Tokenize : public testing::Test {
 protected:
  Tokenize() { folder_.write("tokenizer/tokenizer.json", small_tokenizer()); }

  TokenizeOptions options(const std::vector<std::string>& paths, const std::string& out = "out") const {
    return {.paths = paths, .tokenizer = folder_.path("tokenizer"), .out = folder_.path(out), .threads = 2};
  }
  std::string refusal(const TokenizeOptions& options) const {
    try {
      tokenize(options);
    } catch (const std::runtime_error& error) {  // a disk's fault is none of the user's
      return error.what();
    }
    return "no error";
  }
  // Everything a finished folder holds but its journal.
  std::string all_bytes(const std::string& out) const {
    std::vector<std::string> names;
    for (const auto& entry : fs::directory_iterator(folder_.path(out)))
      if (!is_journal(entry.path().filename().string())) names.push_back(entry.path().filename().string());
    std::sort(names.begin(), names.end());
    std::string all;
    for (const std::string& name : names) all += cat(name, "\n", read_bytes(folder_.path(out + "/" + name)), "\n");
    return all;
  }
  // Some megabytes in three files of all kinds, so that there are many batches.
  std::vector<std::string> large_text() const {
    std::string lines, text;
    for (int i = 0; lines.size() < 2'500'000; ++i)
      lines += cat(R"({"id":)", i, R"(,"text":")", std::string(i * 7919 % 3000, static_cast<char>('a' + i % 26)),
                   " the ", i, "\"}\n");
    for (int i = 0; text.size() < 3'000'000; ++i)
      text += cat(i % 3 == 0 ? "the" : "  the", " line ", i * 7919 % 10007, i % 5 == 0 ? "\n\n" : "\n");
    return {folder_.write("a.jsonl.zst", zstd(lines)), folder_.write("b.txt", text),
            folder_.write("c.jsonl.gz", gzip(lines.substr(0, lines.find('\n', 1'200'000) + 1)))};
  }

  TempFolder folder_;
};

TEST_F(Tokenize, TakesEveryKindOfTextInOrder) {
  folder_.write("books/b.txt", "two the\n");
  folder_.write("books/a/z.jsonl",
                "{\"text\": \"one\"}\n\n  \r\n{\"n\": 1, \"text\": \"\", \"x\": {\"text\": [2]}}\r\n");
  folder_.write("books/c.ndjson.zst", zstd("{\"text\":\"three\"}"));
  folder_.write("books/d.md.gz", gzip("four"));
  folder_.write("books/e.txt", "");
  folder_.write("books/f.bin", std::string("\0\1", 2));
  folder_.write("books/.hidden", "no");
  const TokenizeResult result =
      tokenize(options({folder_.write("last.txt", "<|endoftext|>\u661f"), folder_.path("books")}));
  EXPECT_EQ(text_of_tokens(folder_.path("out")), "|\u661f|one||two the\n|three|four||");
  EXPECT_EQ(result.documents, 7);
  EXPECT_EQ(result.files, 6);
  EXPECT_EQ(result.left_out, 1);
  EXPECT_EQ(result.skipped, 0);
  const TokenFolder written = read_token_folder(folder_.path("out"));
  EXPECT_EQ(written, result.folder);
  EXPECT_EQ(written.type, "uint16");
  EXPECT_EQ(written.vocabulary, 260);
  EXPECT_EQ(written.end_token, 259);
  EXPECT_EQ(written.tokenizer, "tokenizer");
  ASSERT_EQ(written.files.size(), 1u);
  EXPECT_EQ(written.files[0].documents, 7);
  EXPECT_EQ(written.files[0].tokens, result.tokens);
  EXPECT_EQ(read_bytes(folder_.path("out/tokenizer.json")), small_tokenizer());
}

TEST_F(Tokenize, WritesWideTokensForALargeVocabulary) {
  nlohmann::json file = nlohmann::json::parse(small_tokenizer());
  file["added_tokens"].push_back({{"id", 65'535}, {"content", "<far>"}, {"special", true}});
  folder_.write("tokenizer/tokenizer.json", file.dump());
  const std::string text = folder_.write("a.txt", "a<far>");
  EXPECT_EQ(tokenize(options({text})).folder.type, "uint16");
  file["added_tokens"][1]["id"] = 65'536;
  folder_.write("tokenizer/tokenizer.json", file.dump());
  EXPECT_EQ(tokenize(options({text}, "wide")).folder.type, "uint32");
  EXPECT_EQ(read_bytes(folder_.path("wide/tokens-00000.bin")), std::string("a\0\0\0\0\0\1\0\3\1\0\0", 12));
}

TEST_F(Tokenize, GivesTheSameBytesOnAnyNumberOfThreads) {
  const std::vector<std::string> paths = large_text();
  TokenizeOptions first = options(paths, "first");
  first.shard_bytes = 1'500'000;
  first.threads = 1;
  const TokenizeResult result = tokenize(first);
  EXPECT_EQ(result.folder.files.size(), 4u);
  TokenizeOptions second = first;
  second.out = folder_.path("second");
  second.threads = 5;
  tokenize(second);
  EXPECT_EQ(all_bytes("first"), all_bytes("second"));

  // A text that was cut between its lines has the tokens of the whole.
  TokenizeOptions text = options({paths[1]}, "text");
  text.shard_bytes = 1;
  EXPECT_EQ(tokenize(text).folder.files.size(), 3u);
  const Tokenizer tokenizer(folder_.path("tokenizer"));
  EXPECT_EQ(tokenize(text).tokens, std::ssize(tokenizer.encode(read_bytes(paths[1]))) + 1);
  EXPECT_EQ(text_of_tokens(folder_.path("text")), read_bytes(paths[1]) + "|");
}

TEST_F(Tokenize, GoesOnAfterAnError) {
  std::vector<std::string> paths = large_text();
  const std::string good = read_bytes(paths[2]);
  TokenizeOptions whole = options(paths, "whole");
  whole.shard_bytes = 1'500'000;
  tokenize(whole);

  TokenizeOptions broken = whole;
  broken.out = folder_.path("broken");
  folder_.write("c.jsonl.gz", good.substr(0, good.size() / 2));
  EXPECT_NE(refusal(broken).find("c.jsonl.gz is cut short"), std::string::npos);
  EXPECT_FALSE(is_token_folder(broken.out));
  for (const auto& entry : fs::directory_iterator(broken.out)) EXPECT_NE(entry.path().extension(), ".partial");

  folder_.write("c.jsonl.gz", good);
  const TokenizeResult result = tokenize(broken);
  EXPECT_GT(result.kept_tokens, 0);
  EXPECT_LT(result.kept_tokens, result.tokens);
  EXPECT_EQ(all_bytes("broken"), all_bytes("whole"));
  EXPECT_TRUE(tokenize(broken).was_done);
}

TEST_F(Tokenize, NoticesChanges) {
  const std::string text = folder_.write("a.txt", "one");
  tokenize(options({text}));
  EXPECT_TRUE(tokenize(options({text})).was_done);
  const std::string end =
      " since they were made): give another folder, or replace them with startrail tokenize --replace";
  const std::string begin = cat(folder_.path("out"), " holds other tokens (");
  EXPECT_EQ(refusal(options({text, text})), begin + "the text changed" + end);
  folder_.write("a.txt", "two!");
  EXPECT_EQ(refusal(options({text})), begin + "the text changed" + end);
  TokenizeOptions other = options({text});
  other.end_token = "65";
  EXPECT_EQ(refusal(other), begin + "the end token changed" + end);
  EXPECT_EQ(text_of_tokens(folder_.path("out")), "one|");
  other.replace = true;
  tokenize(other);
  EXPECT_EQ(text_of_tokens(folder_.path("out")), "two!A");
  fs::remove(folder_.path("out/tokens-00000.bin"));
  EXPECT_EQ(tokenize(other).was_done, false);
  EXPECT_EQ(text_of_tokens(folder_.path("out")), "two!A");
}

TEST_F(Tokenize, LeavesOtherFoldersAlone) {
  const std::string text = folder_.write("a.txt", "one");
  EXPECT_EQ(
      refusal(options({text}, "tokenizer")),
      cat("--out ", folder_.path("tokenizer"), " holds other files: give a folder that is new, empty, or of tokenize"));
  EXPECT_EQ(refusal(options({text}, "a.txt")), cat("--out ", text, " is no folder"));
  fs::create_directories(folder_.path("out"));
  {
    const FolderLock lock(folder_.path("out"));
    EXPECT_EQ(refusal(options({text})),
              cat(folder_.path("out"), " is being written by another startrail: wait for it, or give another folder"));
  }
  EXPECT_EQ(refusal(options({text})), "no error");
  EXPECT_EQ(refusal(options({folder_.path("out")})),
            cat(folder_.path("out"), " is --out too: what is written would become text; give another folder"));
}

TEST_F(Tokenize, NamesTheFileAndTheLineOfWhatIsWrong) {
  const std::string rule = "; --on-error skip leaves such documents out";
  const std::pair<std::string, std::string> cases[] = {
      {"{\"text\": \"a\"", "is not JSON (at byte 14)"},
      {"[1]", "is no JSON object"},
      {"{\"id\": 1, \"body\": \"x\"}", "has no field 'text'; it has: id, body"},
      {"{}", "has no field 'text'; it has: none"},
      {"{\"text\": null}", "has null in its field 'text', not text"},
      {"{\"text\": {\"text\": \"a\"}}", "has an object in its field 'text', not text"},
      {"{\"text\": \"\xff\"}", "is not UTF-8 text (at byte 10)"}};
  for (const auto& [line, what] : cases) {
    const std::string file = folder_.write("a.jsonl", cat("{\"text\":\"a\"}\n\n", line, "\n{\"text\":\"b\"}\n"));
    TokenizeOptions all = options({file});
    EXPECT_EQ(refusal(all), cat(file, " line 3 ", what, rule));
    all.skip = true;
    all.out = folder_.path("skipped");
    all.replace = true;
    std::vector<std::string> said;
    const TokenizeResult result = tokenize(all, {.skipped = [&](const std::string& why) { said.push_back(why); }});
    EXPECT_EQ(said, std::vector<std::string>{cat(file, " line 3 ", what)});
    EXPECT_EQ(result.skipped, 1);
    EXPECT_EQ(result.documents, 2);
    EXPECT_EQ(text_of_tokens(folder_.path("skipped")), "a|b|");
  }
  TokenizeOptions named = options({folder_.write("b.jsonl", "{\"body\": \"x\"}")}, "named");
  named.text_field = "body";
  tokenize(named);
  EXPECT_EQ(text_of_tokens(folder_.path("named")), "x|");
}

TEST_F(Tokenize, SkipsTextThatIsNotUtf8AsAWhole) {
  std::string text;
  for (int i = 0; text.size() < 2'000'000; ++i) text += cat("line ", i, "\n");
  const auto lines = std::count(text.begin(), text.end(), '\n');
  const std::string bad = folder_.write("bad.txt", text + "\xc3\x28"), good = folder_.write("good.txt", "good");
  TokenizeOptions all = options({bad, good});
  EXPECT_NE(refusal(all).find(cat(bad, " line ", lines + 1, " is not UTF-8 text (at byte ")), std::string::npos);
  all.skip = true;
  std::vector<std::string> said;
  tokenize(all, {.skipped = [&](const std::string& why) { said.push_back(why); }});
  EXPECT_EQ(said, std::vector<std::string>{cat(bad, " is not UTF-8 text (at byte ", text.size(), ")")});
  EXPECT_EQ(text_of_tokens(folder_.path("out")), "good|");
}

TEST_F(Tokenize, NamesMayBeInLargeLetters) {
  tokenize(options(
      {folder_.write("A.JSONL", "{\"text\":\"one\"}\n"), folder_.write("B.Json.GZ", gzip("{\"text\":\"two\"}"))}));
  EXPECT_EQ(text_of_tokens(folder_.path("out")), "one|two|");
}

TEST_F(Tokenize, NothingIsNoResult) {
  TokenizeOptions all = options({folder_.write("a.jsonl", "{\"n\":1}\n{\"n\":2}\n")});
  all.skip = true;
  EXPECT_EQ(refusal(all), cat(all.paths[0], " gave no tokens: all 2 documents were left out"));
  EXPECT_FALSE(is_token_folder(all.out));
  EXPECT_EQ(refusal(all), cat(all.paths[0], " gave no tokens: all 2 documents were left out")) << "again";
}

TEST_F(Tokenize, RefusesWhatIsNotText) {
  const std::string rule = ": give text, .jsonl, either packed as .gz or .zst, or folders of them";
  EXPECT_EQ(refusal(options({folder_.path("no")})), cat(folder_.path("no"), " does not exist", rule));
  const std::string binary = folder_.write("some/a.bin", std::string("a\0b", 3));
  EXPECT_EQ(refusal(options({binary})), cat(binary, " is binary, it holds NUL bytes", rule));
  EXPECT_EQ(refusal(options({folder_.path("some")})),
            cat(folder_.path("some"), " holds no text, only binary files", rule));
}

TEST_F(Tokenize, FindsTheEndToken) {
  const std::string text = folder_.write("a.txt", "a");
  folder_.write("tokenizer/tokenizer.json", small_tokenizer("<stop>"));
  const std::string tokenizer = folder_.path("tokenizer");
  EXPECT_EQ(refusal(options({text})),
            cat("no end token is known of ", tokenizer,
                ": there is no eos_token in a tokenizer_config.json beside it, and no token <|endoftext|>, "
                "<|end_of_text|>, </s>, <|eos|>, <eos>; give --end-token with a token or an id"));
  int made = 0;
  const auto found = [&](const std::string& wanted) {
    TokenizeOptions all = options({text}, cat("out", ++made));
    all.end_token = wanted;
    return tokenize(all).folder.end_token;
  };
  EXPECT_EQ(found("<stop>"), 259);
  EXPECT_EQ(found("7"), 7) << "a number is an id, though a token of text is spelled so too";
  EXPECT_EQ(found("77"), 77);
  folder_.write("tokenizer/config.json", R"({"eos_token_id": 3})");
  EXPECT_EQ(found(""), 3);
  folder_.write("tokenizer/generation_config.json", R"({"eos_token_id": [4, 5]})");
  EXPECT_EQ(found(""), 4);
  folder_.write("tokenizer/tokenizer_config.json", R"({"eos_token": {"content": "the"}})");
  EXPECT_EQ(found(""), 257);
  folder_.write("tokenizer/tokenizer_config.json", R"({"eos_token": "<stop>"})");
  EXPECT_EQ(found(""), 259);
  EXPECT_TRUE(fs::exists(folder_.path(cat("out", made, "/tokenizer_config.json"))));
  EXPECT_EQ(error_of([&] { found("260"); }), "--end-token 260 is not in the vocabulary: ids are 0 to 259");
  EXPECT_EQ(error_of([&] { found("<no>"); }),
            cat("--end-token <no> is no token of ", tokenizer, ": give one as it spells it, or an id"));
}

// As a full disk, for which a test would need one of its own.
TEST_F(Tokenize, LeavesNothingHalfWrittenWhenFilesCannotGrow) {
  const std::vector<std::string> paths = large_text();
  rlimit before{};
  getrlimit(RLIMIT_FSIZE, &before);
  signal(SIGXFSZ, SIG_IGN);
  const rlimit small{3'000'000, before.rlim_max};
  setrlimit(RLIMIT_FSIZE, &small);
  const std::string error = refusal(options(paths));
  setrlimit(RLIMIT_FSIZE, &before);
  EXPECT_NE(error.find("tokens-00000.bin.partial cannot be written: File too large"), std::string::npos) << error;
  for (const auto& entry : fs::directory_iterator(folder_.path("out")))
    EXPECT_TRUE(is_journal(entry.path().filename().string())) << entry.path();
  tokenize(options(paths));
  tokenize(options(paths, "whole"));
  EXPECT_EQ(all_bytes("out"), all_bytes("whole"));
}

}  // namespace
}  // namespace startrail

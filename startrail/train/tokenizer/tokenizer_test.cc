#include "startrail/train/tokenizer/tokenizer.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <numeric>

#include "startrail/base/testing.h"
#include "startrail/train/tokenizer/piece_memo.h"

namespace startrail {
namespace {

using nlohmann::json;
using Tokens = std::vector<int64_t>;

// A small vocabulary whose ids are the places in this list. The letters after U+0100 are GPT-2's for bytes: U+0120 is
// the space, U+010A the line feed; U+00C3 U+00A9 are the two bytes of U+00E9.
const std::vector<std::string> kVocabulary = {"a",
                                              "b",
                                              "c",
                                              "\u0120",
                                              "1",
                                              "2",
                                              "3",
                                              "'",
                                              "s",
                                              "\u00c3",
                                              "\u00a9",
                                              "\u010a",  // 0 to 11, the bytes
                                              "bc",
                                              "ab",
                                              "abc",
                                              "aa",
                                              "\u0120a",
                                              "\u0120\u0120",
                                              "12",
                                              "123",
                                              "23",
                                              "'s",
                                              "\u00c3\u00a9",
                                              "a\u0120",
                                              "cab"};
const char* const kMerges[] = {"b c", "a b",  "a bc", "a a", "\u0120 a",      "\u0120 \u0120",
                               "1 2", "12 3", "2 3",  "' s", "\u00c3 \u00a9", "a \u0120"};

json byte_level(bool prefix = false, bool regex = true) {
  return {{"type", "ByteLevel"}, {"add_prefix_space", prefix}, {"trim_offsets", true}, {"use_regex", regex}};
}

json split_at(const std::string& pattern) {
  return {{"type", "Split"}, {"pattern", {{"Regex", pattern}}}, {"behavior", "Isolated"}, {"invert", false}};
}

json sequence(const std::vector<json>& parts) { return {{"type", "Sequence"}, {"pretokenizers", parts}}; }

json added(int64_t id, const std::string& content) {
  return {{"id", id},        {"content", content},  {"single_word", false}, {"lstrip", false},
          {"rstrip", false}, {"normalized", false}, {"special", true}};
}

json sample() {
  json vocabulary;
  for (size_t i = 0; i < kVocabulary.size(); ++i) vocabulary[kVocabulary[i]] = i;
  return {{"version", "1.0"},
          {"truncation", nullptr},
          {"padding", nullptr},
          {"added_tokens", json::array()},
          {"normalizer", nullptr},
          {"pre_tokenizer", byte_level()},
          {"post_processor", {{"type", "TemplateProcessing"}, {"special_tokens", {{"<s>", {{"ids", {1}}}}}}}},
          {"decoder", byte_level()},
          {"model",
           {{"type", "BPE"},
            {"dropout", nullptr},
            {"unk_token", nullptr},
            {"continuing_subword_prefix", ""},
            {"end_of_word_suffix", nullptr},
            {"byte_fallback", false},
            {"ignore_merges", false},
            {"vocab", vocabulary},
            {"merges", kMerges}}}};
}

Tokenizer load(const std::string& text) {
  const TempFolder folder;
  folder.write("tokenizer.json", text);
  return Tokenizer(folder.path());
}

Tokenizer load(const json& file) { return load(file.dump()); }

// What loading it fails with, after the file's name.
template <class File>
std::string refusal(const File& file) {
  const std::string text = error_of([&] { load(file); });
  const std::string name = "/tokenizer.json";
  return text.find(name) == std::string::npos ? text : text.substr(text.find(name) + name.size());
}

std::string refusal_with(const char* pointer, const json& value) {
  json file = sample();
  file[json::json_pointer(pointer)] = value;
  return refusal(file);
}

TEST(Tokenizer, MergesTheLowestRankFirst) {
  const Tokenizer tokenizer = load(sample());
  EXPECT_EQ(tokenizer.encode(""), Tokens{});
  EXPECT_EQ(tokenizer.encode("a"), Tokens{0});
  EXPECT_EQ(tokenizer.encode("ab"), Tokens{13});
  EXPECT_EQ(tokenizer.encode("abc"), Tokens{14});  // b c, then a bc
  EXPECT_EQ(tokenizer.encode("bcab"), (Tokens{12, 13}));
  EXPECT_EQ(tokenizer.encode("aaa"), (Tokens{15, 0}));  // the leftmost of equals
  EXPECT_EQ(tokenizer.encode("aaaa"), (Tokens{15, 15}));
  EXPECT_EQ(tokenizer.encode("aabcabb"), (Tokens{0, 14, 13, 1}));  // a bc comes before a a
  EXPECT_EQ(tokenizer.encode("123"), Tokens{19});
  EXPECT_EQ(tokenizer.encode("223"), (Tokens{5, 20}));
}

TEST(Tokenizer, TakesMergesAsPairsAndFilesWithoutTypes) {
  json file = sample();
  for (json& merge : file["model"]["merges"]) merge = split(merge.get<std::string>(), ' ');
  for (const char* key : {"type", "dropout", "byte_fallback", "ignore_merges"}) file["model"].erase(key);
  for (const char* key : {"added_tokens", "normalizer", "post_processor"}) file.erase(key);
  file["pre_tokenizer"].erase("use_regex");
  const Tokenizer tokenizer = load(file);
  EXPECT_EQ(tokenizer.encode("aabcabb abc"), (Tokens{0, 14, 13, 1, 3, 14}));
}

TEST(Tokenizer, IgnoresMergesOfWholeTokens) {
  json file = sample();
  EXPECT_EQ(load(file).encode("cab cab"), (Tokens{2, 13, 3, 2, 13}));
  file["model"]["ignore_merges"] = true;
  EXPECT_EQ(load(file).encode("cab cab"), (Tokens{24, 3, 2, 13}));
  EXPECT_EQ(load(file).encode("abc"), Tokens{14});
}

TEST(Tokenizer, CutsAsGpt2) {
  const Tokenizer tokenizer = load(sample());
  EXPECT_EQ(tokenizer.encode("a a"), (Tokens{0, 16}));      // the space goes with what follows
  EXPECT_EQ(tokenizer.encode("a  a"), (Tokens{0, 3, 16}));  // the last of several too
  EXPECT_EQ(tokenizer.encode("a  "), (Tokens{0, 17}));      // at the end they stay together
  EXPECT_EQ(tokenizer.encode("a's"), (Tokens{0, 21}));
  EXPECT_EQ(tokenizer.encode("a12a"), (Tokens{0, 18, 0}));
  EXPECT_EQ(tokenizer.encode("a\n a"), (Tokens{0, 11, 16}));
}

TEST(Tokenizer, CutsWithItsOwnPattern) {
  json file = sample();
  file["pre_tokenizer"] = sequence({split_at("\\p{N}{1,2}| ?\\p{L}+"), byte_level(false, false)});
  EXPECT_EQ(load(file).encode("123 a a"), (Tokens{18, 6, 16, 16}));
  file["pre_tokenizer"] = byte_level(false, false);
  EXPECT_EQ(load(file).encode("a a"), (Tokens{0, 16}));  // one piece, where "space a" comes before "a space"
  EXPECT_EQ(load(file).encode("a 1"), (Tokens{23, 4}));
  file["pre_tokenizer"] = sequence({split_at("1"), split_at("b"), byte_level(false, false)});
  EXPECT_EQ(load(file).encode("abc12"), (Tokens{0, 1, 2, 4, 5}));
  json literal = split_at("");
  literal["pattern"] = {{"String", "a\u00e9"}};
  file["pre_tokenizer"] = sequence({literal, byte_level(false, false)});
  EXPECT_EQ(load(file).encode("aa\u00e9"), (Tokens{0, 0, 22}));
  literal["pattern"] = {{"String", "."}};  // no letter but itself
  file["pre_tokenizer"] = sequence({literal, byte_level(false, false)});
  EXPECT_EQ(load(file).encode("aa"), Tokens{15});
}

TEST(Tokenizer, CutsDigits) {
  json file = sample(), digits = {{"type", "Digits"}, {"individual_digits", true}};
  file["pre_tokenizer"] = sequence({digits, byte_level()});
  EXPECT_EQ(load(file).encode("a 123"), (Tokens{0, 3, 4, 5, 6}));
  digits["individual_digits"] = false;
  file["pre_tokenizer"] = sequence({digits, byte_level()});
  EXPECT_EQ(load(file).encode("a 123"), (Tokens{0, 3, 19}));
}

TEST(Tokenizer, PutsASpaceInFront) {
  json file = sample();
  file["pre_tokenizer"] = byte_level(true);
  file["added_tokens"] = {added(30, "<s>")};
  const Tokenizer tokenizer = load(file);
  EXPECT_EQ(tokenizer.encode("a"), Tokens{16});
  EXPECT_EQ(tokenizer.encode(" a"), Tokens{16});
  EXPECT_EQ(tokenizer.encode("a<s>a"), (Tokens{16, 30, 16}));
  EXPECT_EQ(tokenizer.encode(""), Tokens{});
  EXPECT_EQ(tokenizer.encode("<s>"), Tokens{30});
}

TEST(Tokenizer, TakesAddedTokensLongestFirst) {
  json file = sample(), other = added(33, "<s>a");
  other["normalized"] = true;
  file["added_tokens"] = {added(30, "<s>"), added(31, "<s>b"), added(32, "bc"), other};
  file["added_tokens"][2]["id"] = 12;  // the vocabulary's own
  const Tokenizer tokenizer = load(file);
  EXPECT_EQ(tokenizer.vocabulary(), 34);
  EXPECT_EQ(tokenizer.encode("a<s>c"), (Tokens{0, 30, 2}));
  EXPECT_EQ(tokenizer.encode("<s>bc"), (Tokens{31, 2}));
  EXPECT_EQ(tokenizer.encode("abc"), (Tokens{0, 12}));
  EXPECT_EQ(tokenizer.encode("<s>a"), (Tokens{30, 0}));  // the verbatim ones come first, though shorter
  EXPECT_EQ(tokenizer.decode({0, 30, 31}), "a<s><s>b");
}

TEST(Tokenizer, AddedTokensTakeWhiteSpace) {
  json file = sample(), left = added(30, "<l>"), right = added(31, "<r>");
  left["lstrip"] = right["rstrip"] = true;
  file["added_tokens"] = {left, right, added(32, "\t")};
  file["model"]["vocab"]["\u0122"] = 33;  // byte 0x80, the end of many white spaces but none alone
  const Tokenizer tokenizer = load(file);
  EXPECT_EQ(tokenizer.encode("a \n\u3000<l> a"), (Tokens{0, 30, 16}));
  EXPECT_EQ(tokenizer.encode("a <r> \n\u3000a"), (Tokens{0, 3, 31, 0}));
  EXPECT_EQ(tokenizer.encode("<r> <l>"), (Tokens{31, 30}));
  EXPECT_EQ(tokenizer.encode("  <l>"), Tokens{30});
  EXPECT_EQ(tokenizer.encode("<r> \t a"), (Tokens{31, 32, 16}));  // white space that is a token is not lost
  EXPECT_EQ(tokenizer.encode("\x80<l>"), (Tokens{33, 30}));
}

TEST(Tokenizer, KeepsBytes) {
  json file = sample();
  const std::pair<std::string, char> letters[] = {
      {"\u0100", '\0'},   {"\u0121", '\x7f'}, {"\u0122", '\x80'}, {"\u0142", '\xa0'}, {"\u00a1", '\xa1'},
      {"\u00ac", '\xac'}, {"\u0143", '\xad'}, {"\u00ae", '\xae'}, {"\u00ff", '\xff'}, {"~", '~'}};
  for (size_t i = 0; i < std::size(letters); ++i) file["model"]["vocab"][letters[i].first] = 30 + i;
  const Tokenizer tokenizer = load(file);
  EXPECT_EQ(tokenizer.encode("\u00e9"), Tokens{22});
  EXPECT_EQ(tokenizer.encode("a\xc3"), (Tokens{0, 9}));
  EXPECT_EQ(tokenizer.encode("\xa9\xc3\xa9"), (Tokens{10, 22}));
  EXPECT_EQ(tokenizer.encode("\x80\xad\xff a"), (Tokens{32, 36, 38, 16}));
  for (int64_t i = 0; i < std::ssize(letters); ++i)
    EXPECT_EQ(tokenizer.encode({&letters[i].second, 1}), Tokens{30 + i}) << letters[i].first;
  for (const char* text : {"abc 's 123", "\u00e9\n", "a\xc3", "\xa9\xc3\x80\xad\xc3\xa9\xff"})
    EXPECT_EQ(tokenizer.decode(tokenizer.encode(text)), text);
  EXPECT_EQ(tokenizer.decode({9}), "\xc3");
  EXPECT_EQ(error_of([&] { tokenizer.encode("a\xfe"); }), "the vocabulary has no token for byte 254 of the text");
}

TEST(Tokenizer, SkipsIdsWithoutAToken) {
  json file = sample();
  file["model"]["vocab"]["zz"] = 40;
  const Tokenizer tokenizer = load(file);
  EXPECT_EQ(tokenizer.vocabulary(), 41);
  EXPECT_EQ(tokenizer.decode({0, 39, -1, 1000, 40}), "azz");
}

TEST(Tokenizer, KeepsTokensThatAreNoBytes) {
  json file = sample();
  file["added_tokens"] = {added(30, "\uff5cfin \u00e9\uff5c")};
  file["model"]["vocab"]["\uff5c"] = 31;
  EXPECT_EQ(load(file).decode({30, 31, 22}), "\uff5cfin \u00e9\uff5c\uff5c\u00e9");
}

TEST(Tokenizer, TakesLongPieces) {
  const Tokenizer tokenizer = load(sample());
  const Tokens tokens = tokenizer.encode(std::string(300'001, 'a'));
  EXPECT_EQ(tokens.size(), 150'001u);
  EXPECT_EQ(std::accumulate(tokens.begin(), tokens.end(), int64_t{0}), 150'000 * 15);
}

TEST(Tokenizer, ComposesLetters) {
  json file = sample();
  EXPECT_EQ(error_of([&] { load(file).encode("e\u0301"); }), "the vocabulary has no token for byte 101 of the text");
  const json many = {{"type", "Sequence"}, {"normalizers", {{{"type", "NFC"}}}}};
  for (const json& normalizer : {json{{"type", "NFC"}}, many}) {
    file["normalizer"] = normalizer;
    EXPECT_EQ(load(file).encode("abc e\u0301\u00e9 a"), (Tokens{14, 3, 22, 22, 16}));
  }
  // Those that are looked for after the normalizer are composed too, the others are met as they are.
  json composed = added(30, "<e\u0301>");
  composed["normalized"] = true;
  file["added_tokens"] = {composed, added(31, "[e\u0301]")};
  EXPECT_EQ(load(file).encode("<e\u0301><\u00e9>[e\u0301]"), (Tokens{30, 30, 31}));
}

TEST(Tokenizer, FindsTokensByName) {
  json file = sample();
  file["added_tokens"] = {added(30, "<s>")};
  const Tokenizer tokenizer = load(file);
  EXPECT_EQ(tokenizer.find("<s>"), 30);
  EXPECT_EQ(tokenizer.find("abc"), 14);
  EXPECT_EQ(tokenizer.find("zz"), std::nullopt);
}

TEST(Tokenizer, RemembersWithoutAChange) {
  const Tokenizer tokenizer = load(sample());
  PieceMemo memo;
  std::string text;
  for (int i = 0; i < 3; ++i) text += "aabcabb abc 's 123 " + std::string(30 * i, 'a') + " " + std::string(22 + i, 'c');
  const Tokens plain = tokenizer.encode(text);
  std::vector<uint32_t> tokens;
  tokenizer.encode(text, memo, tokens);
  tokenizer.encode(text, memo, tokens);
  Tokens twice = plain;
  twice.insert(twice.end(), plain.begin(), plain.end());
  EXPECT_EQ(Tokens(tokens.begin(), tokens.end()), twice);
}

TEST(Tokenizer, KnowsWhetherLinesCanBeApart) {
  json file = sample();
  EXPECT_TRUE(load(file).splits_at_lines());
  file["pre_tokenizer"] = byte_level(/*prefix=*/true);
  EXPECT_FALSE(load(file).splits_at_lines());
  file["pre_tokenizer"] = sequence({split_at("a"), byte_level(false, false)});
  EXPECT_FALSE(load(file).splits_at_lines());
  file = sample();
  file["added_tokens"] = {added(30, "<s>")};
  EXPECT_TRUE(load(file).splits_at_lines());
  file["added_tokens"][0]["lstrip"] = true;
  EXPECT_FALSE(load(file).splits_at_lines());
  file["added_tokens"] = {added(30, "<\n>")};
  EXPECT_FALSE(load(file).splits_at_lines());
}

TEST(Tokenizer, RefusesOtherKinds) {
  EXPECT_EQ(refusal_with("/model/type", "WordPiece"), ": model WordPiece is not supported: only BPE is");
  EXPECT_EQ(refusal_with("/model/byte_fallback", true),
            ": model byte_fallback true is not supported: only false is, because byte-level BPE has all bytes");
  EXPECT_EQ(refusal_with("/model/dropout", 0.1), ": model dropout 0.1 is not supported: only null is");
  EXPECT_EQ(refusal_with("/model/dropout", 0.0), "no error");
  EXPECT_EQ(refusal_with("/model/continuing_subword_prefix", "##"),
            ": model continuing_subword_prefix \"##\" is not supported: only null is");
  EXPECT_EQ(refusal_with("/model/end_of_word_suffix", "</w>"),
            ": model end_of_word_suffix \"</w>\" is not supported: only null is");
  EXPECT_EQ(refusal_with("/normalizer", {{"type", "Lowercase"}}),
            ": normalizer Lowercase is not supported: only NFC and none (null) are");
  EXPECT_EQ(refusal_with("/normalizer", "NFC"), ": normalizer string is not supported: only NFC and none (null) are");
  EXPECT_EQ(refusal_with("/decoder", {{"type", "WordPiece"}}),
            ": decoder WordPiece is not supported: only ByteLevel is");
  EXPECT_EQ(refusal_with("/decoder", nullptr), ": decoder null is not supported: only ByteLevel is");
}

TEST(Tokenizer, RefusesOtherCuts) {
  const std::string rule = " is not supported: only ByteLevel is, alone or last in a Sequence after Split and Digits";
  EXPECT_EQ(refusal_with("/pre_tokenizer", {{"type", "Metaspace"}}), ": pre_tokenizer Metaspace" + rule);
  EXPECT_EQ(refusal_with("/pre_tokenizer", nullptr), ": pre_tokenizer null" + rule);
  EXPECT_EQ(refusal_with("/pre_tokenizer", sequence({{{"type", "Whitespace"}}, byte_level()})),
            ": pre_tokenizer Whitespace" + rule);
  EXPECT_EQ(refusal_with("/pre_tokenizer", sequence({byte_level(), split_at("a")})),
            ": pre_tokenizer Split after ByteLevel is not supported: ByteLevel must be last");
  EXPECT_EQ(refusal_with("/pre_tokenizer", split_at("a")),
            ": pre_tokenizer Split without ByteLevel is not supported: ByteLevel must be last");
  json removed = split_at("a"), inverted = split_at("a"), wrong = split_at("(");
  removed["behavior"] = "Removed";
  inverted["invert"] = true;
  EXPECT_EQ(
      refusal_with("/pre_tokenizer", sequence({removed, byte_level()})),
      ": pre_tokenizer Split with behavior Removed and invert false is not supported: only Isolated and false are");
  EXPECT_EQ(
      refusal_with("/pre_tokenizer", sequence({inverted, byte_level()})),
      ": pre_tokenizer Split with behavior Isolated and invert true is not supported: only Isolated and false are");
  EXPECT_EQ(refusal_with("/pre_tokenizer", sequence({wrong, byte_level()})),
            ": pattern ( is not valid: missing closing parenthesis");
}

TEST(Tokenizer, RefusesTokensThatContradict) {
  json word = added(30, "<s>");
  word["single_word"] = true;
  EXPECT_EQ(refusal_with("/added_tokens", json::array({word})),
            ": added token '<s>' with single_word is not supported: only false is");
  EXPECT_EQ(refusal_with("/added_tokens", json::array({added(30, "abc")})),
            ": added token 'abc' has id 30, but the vocabulary gives it 14");
  EXPECT_EQ(refusal_with("/added_tokens", json::array({added(14, "<s>")})),
            ": added token '<s>' has id 14, which token 'abc' has too");
  EXPECT_EQ(refusal_with("/added_tokens", {added(30, "<s>"), added(30, "<s>")}), "no error");
  EXPECT_EQ(refusal_with("/added_tokens", json::array({added(-1, "<s>")})),
            ": added token '<s>' has id -1: it must be 0 to 2147483647");
  EXPECT_EQ(refusal_with("/model/vocab/zz", -1), ": token 'zz' has id -1: it must be 0 to 2147483647");
  EXPECT_EQ(refusal_with("/model/vocab/zz", int64_t{1} << 31),
            ": token 'zz' has id 2147483648: it must be 0 to 2147483647");
  EXPECT_EQ(refusal_with("/model/vocab", {{"a", 5}, {"b", 5}}), ": token 'b' has id 5, which another token has too");
  EXPECT_EQ(refusal_with("/model/merges", {"a c"}),
            ": merge \"a c\" needs the token 'ac', which is not in the vocabulary");
  EXPECT_EQ(refusal_with("/model/merges", {"a z"}),
            ": merge \"a z\" needs the token 'z', which is not in the vocabulary");
  EXPECT_EQ(refusal_with("/model/merges", {"a b c"}), ": merge \"a b c\" is not two tokens with a space between them");
}

TEST(Tokenizer, RefusesOtherFiles) {
  const std::string rule = " is no tokenizer.json: ";
  EXPECT_EQ(refusal(std::string("{\"model\": ")), " is not whole JSON: it cannot be read beyond byte 11");
  EXPECT_EQ(refusal(json{{"a", 1}}), rule + "key 'model' not found");
  EXPECT_EQ(refusal(json(3)).substr(0, rule.size()), rule);
  EXPECT_EQ(refusal_with("/model/vocab", 3).substr(0, rule.size()), rule);
  EXPECT_EQ(refusal_with("/model/merges", {3}).substr(0, rule.size()), rule);
  EXPECT_EQ(refusal_with("/added_tokens", {3}).substr(0, rule.size()), rule);
  const TempFolder folder;
  const std::string rest =
      " cannot be read: No such file or directory; give a tokenizer.json or a folder that holds one";
  EXPECT_EQ(error_of([&] { Tokenizer tokenizer(folder.path()); }), cat(folder.path("tokenizer.json"), rest));
  EXPECT_EQ(error_of([&] { Tokenizer tokenizer(folder.path("no")); }), cat(folder.path("no"), rest));
  EXPECT_EQ(Tokenizer(folder.write("other.json", sample().dump())).vocabulary(), 25);
}

}  // namespace
}  // namespace startrail

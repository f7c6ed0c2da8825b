#include "startrail/train/loop/settings.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include <bit>
#include <cmath>
#include <fstream>
#include <random>

#include "startrail/base/testing.h"

namespace startrail {
namespace {

struct Sample {
  bool compile = false;
  int64_t batch = 4, seed = 1, layers = 12;
  double rate = 0.5, decay = 0;
  std::string kind = "adam", path = "here";

  Settings settings() {
    return {{"train.batch", &batch, "Sequences a rank takes at a step.", {}, 1, 64},
            {"train.rate", &rate, "The largest rate of learning.", {}, 0},
            {"seed", &seed, "Where random numbers start."},
            {"model.layers", &layers, "How many layers follow each other.", {}, 1},
            {"train.optimizer.kind", &kind, "The rule by which weights move.", {"adam", "muon"}},
            {"train.optimizer.decay", &decay, "What pulls weights to zero.", {}, -1e9, 0.25},
            {"train.path", &path, "Where results go."},
            {"train.compile", &compile, ""}};
  }
};

std::string refusal(std::string_view text) {
  Sample sample;
  return error_of([&] { read_toml_text(sample.settings(), text, "run.toml"); });
}

std::string set_refusal(std::string_view assignment) {
  Sample sample;
  return error_of([&] { set_value(sample.settings(), assignment); });
}

TEST(Settings, ReadsEveryType) {
  Sample sample;
  read_toml_text(sample.settings(), R"(
seed = -7
model.layers = 1_000
[train]
batch = 64
rate = 1  # a whole number is a number
path = 'C:\a'
compile = true
[train.optimizer]
kind = "muon"
decay = 0.25
)",
                 "run.toml");
  EXPECT_EQ(sample.seed, -7);
  EXPECT_EQ(sample.layers, 1000);
  EXPECT_EQ(sample.batch, 64);
  EXPECT_EQ(sample.rate, 1.0);
  EXPECT_EQ(sample.path, "C:\\a");
  EXPECT_TRUE(sample.compile);
  EXPECT_EQ(sample.kind, "muon");
  EXPECT_EQ(sample.decay, 0.25);
}

TEST(Settings, KeepsWhatIsNotGiven) {
  Sample sample;
  read_toml_text(sample.settings(), "[train]\nbatch = 8\n", "run.toml");
  EXPECT_EQ(sample.batch, 8);
  EXPECT_EQ(sample.rate, 0.5);
  EXPECT_EQ(sample.path, "here");
  read_toml_text(sample.settings(), "", "run.toml");
  EXPECT_EQ(sample.batch, 8);
}

TEST(Settings, NamesTheNearestOfAnUnknownName) {
  EXPECT_EQ(refusal("[train]\n\nbacth = 2"),
            "run.toml:3: train.bacth is not a setting; the nearest is train.batch, valid in [train] are: batch, rate, "
            "path, compile");
  EXPECT_EQ(
      refusal("[train]\nlayers = 2"),
      "run.toml:2: train.layers is not a setting; the nearest is model.layers, valid in [train] are: batch, rate, "
      "path, compile");
  EXPECT_EQ(refusal("layers = 2"), "run.toml:1: layers is not a setting; the nearest is model.layers");
  EXPECT_EQ(refusal("layer = 2"), "run.toml:1: layer is not a setting; the nearest is model.layers");
  EXPECT_EQ(refusal("sed = 2"), "run.toml:1: sed is not a setting; the nearest is seed");
  EXPECT_EQ(refusal("[trian]\nbatch = 2"),
            "run.toml:1: [trian] is not a table of settings; the nearest is [train], valid are: train, model, "
            "train.optimizer");
  EXPECT_EQ(refusal("[train.optimiser]\nkind = 'adam'"),
            "run.toml:1: [train.optimiser] is not a table of settings; the nearest is [train.optimizer], valid are: "
            "train, model, train.optimizer");
  int64_t seed = 0;
  EXPECT_EQ(error_of([&] {
              read_toml_text({{"seed", &seed, ""}}, "[a]", "run.toml");
            }),
            "run.toml:1: [a] is not a table of settings");
}

TEST(Settings, RefusesWrongTypes) {
  const auto whole = [](std::string_view value) {
    return cat("run.toml:2: train.batch = ", value, " is not valid: it must be a whole number, 1 to 64");
  };
  EXPECT_EQ(refusal("[train]\nbatch = '4'"), whole("\"4\""));
  EXPECT_EQ(refusal("[train]\nbatch = 1.5"), whole("1.5"));
  EXPECT_EQ(refusal("[train]\nbatch = 2.0"), whole("2.0"));
  EXPECT_EQ(refusal("[train]\nbatch = true"), whole("true"));
  EXPECT_EQ(refusal("[train]\nbatch = [1, 2]"), whole("[...]"));
  EXPECT_EQ(refusal("[train]\nbatch = {a = 1}"), whole("{...}"));
  EXPECT_EQ(refusal("[train]\nbatch = 1979-05-27"), whole("1979-05-27"));
  EXPECT_EQ(refusal("[train]\n[train.batch]"),
            "run.toml:2: train.batch = {...} is not valid: it must be a whole number, 1 to 64");
  EXPECT_EQ(refusal("train.rate = 'fast'"),
            "run.toml:1: train.rate = \"fast\" is not valid: it must be a number, 0 or more");
  EXPECT_EQ(refusal("train.compile = 1"), "run.toml:1: train.compile = 1 is not valid: it must be true or false");
  EXPECT_EQ(refusal("train.path = 1"), "run.toml:1: train.path = 1 is not valid: it must be a text");
  EXPECT_EQ(refusal("train = 3"), "run.toml:1: train = 3 is not valid: it must be a table, [train]");
  EXPECT_EQ(refusal("[[train]]\nbatch = 3"), "run.toml:1: train = [...] is not valid: it must be a table, [train]");
}

TEST(Settings, RefusesWhatIsOutOfRange) {
  const auto batch = [](std::string_view value) {
    return cat("run.toml:1: train.batch = ", value, " is not valid: it must be a whole number, 1 to 64");
  };
  EXPECT_EQ(refusal("train.batch = 0"), batch("0"));
  EXPECT_EQ(refusal("train.batch = 65"), batch("65"));
  EXPECT_EQ(refusal("model.layers = 0"),
            "run.toml:1: model.layers = 0 is not valid: it must be a whole number, 1 or more");
  EXPECT_EQ(refusal("train.rate = -1e-3"),
            "run.toml:1: train.rate = -0.001 is not valid: it must be a number, 0 or more");
  EXPECT_EQ(refusal("train.rate = nan"), "run.toml:1: train.rate = nan is not valid: it must be a number, 0 or more");
  EXPECT_EQ(refusal("train.optimizer.decay = 1"),
            "run.toml:1: train.optimizer.decay = 1 is not valid: it must be a number, -1e+09 to 0.25");
  EXPECT_EQ(refusal("train.optimizer.kind = 'sgd'"),
            "run.toml:1: train.optimizer.kind = \"sgd\" is not valid: it must be one of adam, muon");
  EXPECT_EQ(refusal("train.optimizer.kind = ''"),
            "run.toml:1: train.optimizer.kind = \"\" is not valid: it must be one of adam, muon");
  double number = 0;
  const Settings at_most = {{"a.b", &number, "", {}, -HUGE_VAL, 5}}, any = {{"a.b", &number, ""}};
  EXPECT_EQ(error_of([&] { read_toml_text(at_most, "a.b = 6", "x"); }),
            "x:1: a.b = 6 is not valid: it must be a number, 5 or less");
  EXPECT_EQ(error_of([&] { read_toml_text(any, "a.b = nan", "x"); }),
            "x:1: a.b = nan is not valid: it must be a number");
  read_toml_text(any, "a.b = -inf", "x");
  EXPECT_EQ(number, -HUGE_VAL);
}

TEST(Settings, ReportsTheFirstMistakeInTheFile) {
  EXPECT_EQ(refusal("[train]\npath = 1\nbatch = 0").substr(0, 22), "run.toml:2: train.path");
  EXPECT_EQ(refusal("[train]\nbatch = 0\npath = 1").substr(0, 23), "run.toml:2: train.batch");
  EXPECT_EQ(refusal("[train]\nbatch = 0\n[model]\nlayers = 0").substr(0, 23), "run.toml:2: train.batch");
}

TEST(Settings, RefusesWhatIsNotToml) {
  EXPECT_EQ(refusal("[train]\nbatch = "),
            "run.toml:2 is not TOML: Error while parsing key-value pair: encountered end-of-file");
  EXPECT_EQ(refusal("[train]\nbatch = 1\nbatch = 2").substr(0, 24), "run.toml:3 is not TOML: ");
  EXPECT_EQ(refusal("[[[train]]]").substr(0, 24), "run.toml:1 is not TOML: ");
}

TEST(Settings, AChoiceCalledTrueMayBeWrittenAsABoolean) {
  std::string tied = "preset", name = "x";
  const Settings settings = {{"tied", &tied, "", {"preset", "true", "false"}}, {"name", &name, "", {}}};
  read_toml_text(settings, "tied = true", "here");
  EXPECT_EQ(tied, "true");
  read_toml_text(settings, "tied = \"false\"", "here");
  EXPECT_EQ(tied, "false");
  EXPECT_NE(error_of([&] { read_toml_text(settings, "name = true", "here"); }), "no error");
}

TEST(Settings, ReadsAFile) {
  const TempFolder temporary;
  const std::string name = temporary.path(), file = temporary.write("run.toml", "seed = 5\n[train]\nbatch = 0\n");
  const std::filesystem::path folder = name;
  Sample sample;
  EXPECT_EQ(error_of([&] { read_toml(sample.settings(), file); }),
            cat(name, "/run.toml:3: train.batch = 0 is not valid: it must be a whole number, 1 to 64"));
  EXPECT_EQ(sample.seed, 1);  // a file with a mistake sets nothing
  EXPECT_EQ(error_of([&] { read_toml(sample.settings(), folder / "no.toml"); }),
            cat(name, "/no.toml cannot be read: No such file or directory"));
  EXPECT_EQ(error_of([&] { read_toml(sample.settings(), folder); }), cat(name, " is a folder: give a TOML file"));
}

TEST(Settings, SetsOneValue) {
  Sample sample;
  const Settings settings = sample.settings();
  set_value(settings, "train.batch=8");
  EXPECT_EQ(sample.batch, 8);
  set_value(settings, " train.batch = 16 ");
  EXPECT_EQ(sample.batch, 16);
  set_value(settings, "model.layers=1e6");
  EXPECT_EQ(sample.layers, 1000000);
  set_value(settings, "seed=-9223372036854775808");
  EXPECT_EQ(sample.seed, std::numeric_limits<int64_t>::min());
  set_value(settings, "train.rate=2");
  EXPECT_EQ(sample.rate, 2.0);
  set_value(settings, "train.rate=3e-4");
  EXPECT_EQ(sample.rate, 3e-4);
  set_value(settings, "train.compile=true");
  EXPECT_TRUE(sample.compile);
  set_value(settings, "train.compile=false");
  EXPECT_FALSE(sample.compile);
  set_value(settings, "train.optimizer.kind=\"muon\"");
  EXPECT_EQ(sample.kind, "muon");
}

TEST(Settings, SetsTextsWithAndWithoutQuotes) {
  const std::pair<const char*, const char*> cases[] = {
      {"train.path=", ""},         {"train.path=\"\"", ""},         {"train.path=a=b, c # d", "a=b, c # d"},
      {"train.path=true", "true"}, {"train.path='a\\n'", "a\\n"},   {"train.path=\"a\\n\"", "a\n"},
      {"train.path=\"", "\""},     {"train.path=it's", "it's"},     {"train.path=C:\\new \"x\"", "C:\\new \"x\""},
      {"train.path=\" \"", " "},   {"train.path=\u661f", "\u661f"},
  };
  for (const auto& [assignment, expected] : cases) {
    Sample sample;
    set_value(sample.settings(), assignment);
    EXPECT_EQ(sample.path, expected) << assignment;
  }
}

TEST(Settings, RefusesWrongAssignments) {
  EXPECT_EQ(set_refusal("train.batch"), "--set 'train.batch' is not of the form NAME=VALUE");
  EXPECT_EQ(set_refusal(" =3"), "--set ' =3' is not of the form NAME=VALUE");
  EXPECT_EQ(set_refusal(""), "--set '' is not of the form NAME=VALUE");
  EXPECT_EQ(set_refusal("bach=3"), "--set bach is not a setting; the nearest is train.batch");
  EXPECT_EQ(set_refusal("trian.batch=3"), "--set trian.batch is not a setting; the nearest is train.batch");
  EXPECT_EQ(set_refusal("model.layer=3"),
            "--set model.layer is not a setting; the nearest is model.layers, valid in [model] are: layers");
  const std::string rule = " is not valid: it must be a whole number, 1 to 64";
  for (const char* value : {"", "0", "65", "1.5", "many", "'2'", "1e30", "nan", "-inf", "true", "2 3", "2\nx = 3"})
    EXPECT_EQ(set_refusal(cat("train.batch=", value)), cat("--set train.batch = ", value, rule));
  EXPECT_EQ(set_refusal("seed=9223372036854775808"),
            "--set seed = 9223372036854775808 is not valid: it must be a whole number");
  EXPECT_EQ(set_refusal("seed=9.223372036854775808e18"),
            "--set seed = 9.223372036854775808e18 is not valid: it must be a whole number");
  EXPECT_EQ(set_refusal("train.compile=yes"), "--set train.compile = yes is not valid: it must be true or false");
  EXPECT_EQ(set_refusal("train.optimizer.kind=sgd"),
            "--set train.optimizer.kind = sgd is not valid: it must be one of adam, muon");
  EXPECT_EQ(set_refusal("train.path=\"a\" or \"b\""),
            "--set train.path = \"a\" or \"b\" is not one text in UTF-8: put quotes around all of it or write none");
  EXPECT_EQ(set_refusal("train.path=\xff"),
            "--set train.path = \xff is not one text in UTF-8: put quotes around all of it or write none");
}

TEST(Settings, WritesCommentedToml) {
  Sample sample;
  EXPECT_EQ(to_toml(sample.settings()), R"(# Where random numbers start.
seed = 1

[train]
# Sequences a rank takes at a step. (1 to 64)
batch = 4
# The largest rate of learning. (0 or more)
rate = 0.5
# Where results go.
path = "here"
compile = false

[model]
# How many layers follow each other. (1 or more)
layers = 12

[train.optimizer]
# The rule by which weights move. (one of adam, muon)
kind = "adam"
# What pulls weights to zero. (-1e+09 to 0.25)
decay = 0.0
)");
}

TEST(Settings, TomlReadsBackExactly) {
  std::mt19937_64 random(7);
  std::vector<double> numbers = {0.0,         -0.0, 0.1,  1.0 / 3, 1e-5, 5e-324,   1.7976931348623157e308,
                                 123456789.0, 1e15, 1e16, 1e23,    -2.5, HUGE_VAL, -HUGE_VAL};
  while (numbers.size() < 2000) {
    const auto number = std::bit_cast<double>(random());
    if (!std::isnan(number)) numbers.push_back(number);
  }
  std::vector<std::string> texts = {"",
                                    "\"",
                                    "\\",
                                    "\n\r\t\b\f\x1b\x7f",
                                    std::string("a\0b", 3),
                                    "'''",
                                    "\"\"\"",
                                    "# no",
                                    "e\u0301 \u661f\u8f68 \U0001F680 \ufeff",
                                    "C:\\u0041",
                                    " blank "};
  const int64_t wholes[] = {0, -1, std::numeric_limits<int64_t>::max(), std::numeric_limits<int64_t>::min()};
  for (size_t i = 0; i < numbers.size(); ++i) {
    double number = numbers[i], read_number = 7;
    int64_t whole = wholes[i % std::size(wholes)], read_whole = 7;
    std::string text = texts[i % texts.size()], read_text = "7";
    bool flag = i % 2 == 0, read_flag = !flag;
    const std::string toml =
        to_toml({{"n", &number, "N."}, {"a.w", &whole, "W."}, {"a.t", &text, "T."}, {"f", &flag, "F."}});
    read_toml_text({{"n", &read_number, ""}, {"a.w", &read_whole, ""}, {"a.t", &read_text, ""}, {"f", &read_flag, ""}},
                   toml, "x");
    EXPECT_EQ(std::signbit(read_number), std::signbit(number)) << toml;
    EXPECT_EQ(read_number, number) << toml;
    EXPECT_EQ(read_whole, whole) << toml;
    EXPECT_EQ(read_text, text) << toml;
    EXPECT_EQ(read_flag, flag) << toml;
  }
}

TEST(Settings, HelpIsAlignedAndWrapped) {
  int64_t batch = 4;
  bool compile = true;
  std::string kind = "adam", name = "\u661f\u8f68", path = "/\u661f/a/long/path/to/results";
  const Settings settings = {
      {"train.batch", &batch, "Sequences a rank takes at a step; the whole batch is this times the ranks.", {}, 1, 64},
      {"seed", &batch, "Where random numbers start."},
      {"train.path", &path, "Where results go."},
      {"train.kind", &kind, "The rule by which weights move.", {"adam", "muon"}},
      {"train.name", &name, "What it is called."},
      {"train.compile", &compile, ""}};
  EXPECT_EQ(help_text(settings),
            "  seed           whole number  4             Where random numbers start.\n"
            "\n"
            "  train.batch    whole number  4             Sequences a rank takes at a step; the whole batch is\n"
            "                                             this times the ranks. (1 to 64)\n"
            "  train.path     text          \"/\u661f/a/long/path/to/results\"\n"
            "                                             Where results go.\n"
            "  train.kind     text          \"adam\"        The rule by which weights move. (one of adam, muon)\n"
            "  train.name     text          \"\u661f\u8f68\"          What it is called.\n"
            "  train.compile  true/false    true\n");
}

}  // namespace
}  // namespace startrail

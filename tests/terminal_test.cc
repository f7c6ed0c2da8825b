// What a terminal shows while a run goes on.
#include <gtest/gtest.h>
#include <pty.h>
#include <sys/ioctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>

#include "startrail/base/testing.h"
#include "startrail/train/data/tokenize/testing.h"
#include "tests/command.h"
#include "tests/training.h"

namespace startrail {
namespace {

// Runs the program on a terminal of `columns`, which becomes `later` columns wide when it has shown `shown` lines; each
// line that it wrote over another.
std::vector<std::string> live_lines(std::vector<std::string> arguments, int columns, int later, size_t shown) {
  winsize size{.ws_row = 24, .ws_col = static_cast<unsigned short>(columns), .ws_xpixel = 0, .ws_ypixel = 0};
  int terminal = -1;
  const pid_t child = forkpty(&terminal, nullptr, nullptr, &size);
  if (child == 0) {
    std::vector<char*> words;
    for (std::string& argument : arguments) words.push_back(argument.data());
    words.push_back(nullptr);
    execv(STARTRAIL_COMMAND, words.data());
    _exit(127);
  }
  const std::string wipe = "\r\033[K";
  std::string text;
  char piece[4096];
  for (ssize_t got; (got = read(terminal, piece, sizeof piece)) > 0;) {  // an error at the program's end
    text.append(piece, static_cast<size_t>(got));
    size_t lines = 0;
    for (size_t at = 0; (at = text.find(wipe, at)) != std::string::npos; ++at) ++lines;
    if (lines < shown || size.ws_col == later) continue;
    size.ws_col = static_cast<unsigned short>(later);
    ioctl(terminal, TIOCSWINSZ, &size);
  }
  close(terminal);
  int status = 0;
  waitpid(child, &status, 0);
  EXPECT_EQ(status, 0) << text;
  std::vector<std::string> lines;
  for (size_t at = text.find(wipe); at != std::string::npos;) {
    const size_t next = text.find(wipe, at + 1);
    lines.push_back(text.substr(at + wipe.size(), next == std::string::npos ? next : next - at - wipe.size()));
    at = next;
  }
  return lines;
}

TEST(Terminal, ALiveLineFitsItAlsoAfterAResize) {
  const TempFolder folder;
  small_config(folder);
  std::vector<std::string> arguments = {"startrail", "train"};
  for (const std::string& set :
       {cat("data.path=", folder.path("data")), cat("run.folder=", folder.path("run")), std::string("train.tokens=64"),
        std::string("model.layers=1"), std::string("parallel.threads=1"), std::string("train.steps=150"),
        std::string("validate.every=3"), std::string("validate.windows=1")}) {
    arguments.push_back("--set");
    arguments.push_back(set);
  }
  const std::vector<std::string> lines = live_lines(arguments, 80, 30, 20);
  ASSERT_GE(lines.size(), 150u);
  size_t cut = 0;
  for (size_t i = 0; i < lines.size(); ++i) {
    if (lines[i].find('\n') != std::string::npos) continue;  // it stays, so it may wrap
    EXPECT_LT(lines[i].size(), 80u) << lines[i];
    cut += lines[i].size() < 30;
  }
  const auto first = std::ranges::find_if(lines, [](const std::string& line) { return line.starts_with("step "); });
  ASSERT_NE(first, lines.end());
  EXPECT_EQ(first->substr(0, 11), "step 1/150 ");
  EXPECT_LT(lines[lines.size() - 3].size(), 30u) << lines[lines.size() - 3];
  EXPECT_GT(cut, 10u);
}

size_t count_of(const std::vector<std::string>& lines, const std::string& begin) {
  return static_cast<size_t>(
      std::ranges::count_if(lines, [&](const std::string& line) { return line.starts_with(begin); }));
}

TEST(Terminal, ShowsThatTextIsTokenizedInALineThatFits) {
  const TempFolder folder;
  folder.write("small/tokenizer.json", small_tokenizer());
  std::string text;
  for (int i = 0; text.size() < 4'000'000; ++i) text += cat("the line ", i, "\n");
  const std::vector<std::string> lines = live_lines({"startrail", "tokenize", "--tokenizer", folder.path("small"),
                                                     "--out", folder.path("out"), folder.write("a.txt", text)},
                                                    30, 30, 0);
  EXPECT_GE(count_of(lines, "tokenizing: "), 1u);
  for (size_t i = 0; i + 1 < lines.size(); ++i) EXPECT_LT(lines[i].size(), 30u) << lines[i];
}

TEST(Terminal, ShowsThatPicturesAreDrawn) {
  const TempFolder folder;
  const std::string run = folder.path("run");
  ASSERT_EQ(
      run_command(
          cat("train --set model.preset=dit-tiny --set model.layers=1 --set model.dim=32 --set data.path=shapes --set "
              "train.steps=1 --set validate.every=0 --set validate.windows=1 --set run.folder=",
              run, " --json"))
          .code,
      0);
  const std::vector<std::string> lines = live_lines({"startrail", "sample", "--checkpoint", run, "--classes", "0",
                                                     "--count", "3", "--steps", "4", "--out", folder.path("a.png")},
                                                    80, 80, 0);
  EXPECT_EQ(count_of(lines, "drawing 3 pictures: "), 4u);
  EXPECT_EQ(count_of(lines, "drawing 3 pictures: 50%"), 1u);
}

}  // namespace
}  // namespace startrail

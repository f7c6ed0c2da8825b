#include "tests/tokenize.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <random>
#include <thread>

#include "startrail/base/testing.h"
#include "startrail/train/data/tokenize/journal.h"
#include "startrail/train/data/tokenize/testing.h"
#include "tests/command.h"
#include "tests/python.h"

namespace startrail {
namespace {

namespace fs = std::filesystem;

// Starts the program and kills it after a while. True when it was done before.
bool start_and_kill(const std::vector<std::string>& arguments, std::chrono::microseconds after) {
  std::vector<char*> words{const_cast<char*>(STARTRAIL_COMMAND)};
  for (const std::string& argument : arguments) words.push_back(const_cast<char*>(argument.c_str()));
  words.push_back(nullptr);
  const pid_t child = fork();
  if (child == 0) {
    const int nowhere = open("/dev/null", O_WRONLY);
    dup2(nowhere, STDOUT_FILENO);
    execv(words[0], words.data());
    _exit(127);
  }
  std::this_thread::sleep_for(after);
  kill(child, SIGKILL);
  int status = 0;
  waitpid(child, &status, 0);
  if (!WIFEXITED(status)) return false;
  EXPECT_EQ(WEXITSTATUS(status), 0);
  return true;
}

}  // namespace

void expect_reference_tokens(int64_t bytes) {
  const TempFolder folder;
  python(cat("tokenizer_reference.py ", folder.path(), " ", bytes));
  for (const std::string name : {"gpt2", "llama3", "qwen2"}) {
    const std::string out = folder.path("out-" + name);
    const Ended ended =
        run_command(cat("tokenize --tokenizer ", folder.path(name), " --out ", out, " ", folder.path("corpus.jsonl")));
    ASSERT_EQ(ended.code, 0) << ended.text;
    const std::string expected = read_bytes(folder.path(name + "/expected.bin"));
    EXPECT_GT(std::ssize(expected), bytes / 4);
    EXPECT_TRUE(read_bytes(out + "/tokens-00000.bin") == expected) << name;
  }
}

void kill_and_tokenize(int kills) {
  const TempFolder folder;
  folder.write("small/tokenizer.json", small_tokenizer());
  std::string lines;
  const size_t size = kills < 20 ? 6'000'000 : 24'000'000;
  for (int i = 0; lines.size() < size; ++i)
    lines += cat(R"({"text":")", std::string(i * 7919 % 3000, static_cast<char>('a' + i % 26)), " the ", i, "\"}\n");
  const std::string corpus = folder.write("a.jsonl.zst", zstd(lines)), text = folder.write("b.txt", lines);
  const auto arguments = [&](const std::string& out) -> std::vector<std::string> {
    return {"tokenize", "--tokenizer", folder.path("small"), "--out", folder.path(out), "--shard-mb", "2",
            corpus,     text};
  };
  const auto begin = std::chrono::steady_clock::now();
  ASSERT_EQ(run_process(join(arguments("whole"), " ")).code, 0);
  const auto whole = std::chrono::duration_cast<std::chrono::microseconds>(std::chrono::steady_clock::now() - begin);

  std::mt19937 random(11);
  int harmed = 0, with_shards = 0;
  for (int i = 0; i < kills; ++i) {
    // Each harms a run of its own every few times, so that kills meet all parts of one.
    if (i % 4 == 0) fs::remove_all(folder.path("killed"));
    const auto after = std::chrono::microseconds(static_cast<int64_t>(random() % 1000) * whole.count() / 1000);
    if (!start_and_kill(arguments("killed"), after)) ++harmed;
    if (fs::exists(folder.path("killed"))) with_shards += !read_journal(folder.path("killed")).shards.empty();
  }
  EXPECT_GT(harmed, 0);
  EXPECT_GE(with_shards, kills >= 20 ? 1 : 0);
  ASSERT_EQ(run_process(join(arguments("killed"), " ")).code, 0);
  for (const auto& entry : fs::directory_iterator(folder.path("whole"))) {
    const std::string name = entry.path().filename().string();
    if (is_journal(name)) continue;
    EXPECT_TRUE(read_bytes(entry.path().string()) == read_bytes(folder.path("killed/" + name))) << name;
  }
  for (const auto& entry : fs::directory_iterator(folder.path("killed")))
    EXPECT_TRUE(fs::exists(fs::path(folder.path("whole")) / entry.path().filename())) << entry.path();
}

}  // namespace startrail

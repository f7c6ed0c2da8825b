#include "tests/command.h"

#include <sys/wait.h>

#include <array>
#include <cstdio>
#include <sstream>
#include <vector>

#include "cli/run.h"

namespace startrail {
namespace {

std::vector<std::string> words_of(const std::string& arguments) {
  std::vector<std::string> words;
  bool quoted = false, within = false;
  for (const char letter : arguments) {
    if (letter == '\'') {
      quoted = !quoted;
    } else if (letter == ' ' && !quoted) {
      within = false;
      continue;
    }
    if (!within) words.emplace_back();
    within = true;
    if (letter != '\'') words.back() += letter;
  }
  return words;
}

}  // namespace

Ended run_command(const std::string& arguments) {
  std::ostringstream said;
  const int code = cli::run(words_of(arguments), said, said);
  return {code, said.str()};
}

Ended run_process(const std::string& arguments) {
  FILE* pipe = popen(("{ " + std::string(STARTRAIL_COMMAND) + " " + arguments + "; } 2>&1").c_str(), "r");
  if (!pipe) return {-1, "the command could not be started"};
  std::string text;
  std::array<char, 4096> buffer;
  while (const size_t got = fread(buffer.data(), 1, buffer.size(), pipe)) text.append(buffer.data(), got);
  const int status = pclose(pipe);
  return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, text};
}

}  // namespace startrail

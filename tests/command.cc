#include "tests/command.h"

#include <sys/wait.h>

#include <array>
#include <cstdio>

namespace startrail {

Ended run_command(const std::string& arguments) {
  FILE* pipe = popen((std::string(STARTRAIL_COMMAND) + " " + arguments + " 2>&1").c_str(), "r");
  if (!pipe) return {-1, "the command could not be started"};
  std::string text;
  std::array<char, 4096> buffer;
  while (const size_t got = fread(buffer.data(), 1, buffer.size(), pipe)) text.append(buffer.data(), got);
  const int status = pclose(pipe);
  return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, text};
}

}  // namespace startrail

// The command as a test runs it.
#pragma once

#include <string>

namespace startrail {

struct Ended {
  int code;
  std::string text;  // stdout and stderr
};

// `startrail <arguments>` inside this process, which saves half a second of loading libtorch. Arguments are words, in
// single quotes where they have spaces.
Ended run_command(const std::string& arguments);

// The program itself, through the shell: for signals, the environment and what else belongs to a process. Code -1 when
// it did not end by itself.
Ended run_process(const std::string& arguments);

}  // namespace startrail

// The command as a test starts it.
#pragma once

#include <string>

namespace startrail {

struct Ended {
  int code;
  std::string text;  // stdout and stderr
};

// Runs `startrail <arguments>` through the shell; code -1 when it did not end by itself.
Ended run_command(const std::string& arguments);

}  // namespace startrail

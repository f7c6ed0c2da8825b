// Errors by who can repair them. The library throws these and never prints or exits;
// the command turns each into one sentence on stderr and an exit code.
#pragma once

#include <stdexcept>
#include <string>

#include "startrail/base/text.h"

namespace startrail {

// A flag, a file or a shape is wrong: the message gives the value, the rule and the valid choices. Exit 2.
struct UserError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// A peer, a timeout or the machine failed. Exit 3.
struct ClusterError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// A bug of ours. Exit 70.
struct InternalError : std::logic_error {
  using std::logic_error::logic_error;
};

// "`file` `what`: reason" from an errno. ClusterError when the disk failed or is full, or the process has no memory or
// file handles left, which says nothing of the file; else UserError.
[[noreturn]] void throw_file_error(const std::string& file, const char* what, int code);

}  // namespace startrail

// Throws InternalError with the place and the values given when `condition` does not hold.
#define STARTRAIL_CHECK(condition, ...)                                                                  \
  do {                                                                                                   \
    if (!(condition))                                                                                    \
      throw ::startrail::InternalError(                                                                  \
          ::startrail::cat(__FILE__, ":", __LINE__, ": ", #condition, " does not hold: ", __VA_ARGS__)); \
  } while (false)

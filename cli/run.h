// The command as a function: main() calls it, and so do tests, which save the start of a process.
#pragma once

#include <iosfwd>
#include <string>
#include <vector>

namespace startrail::cli {

// Runs `startrail <arguments>` and returns its exit code: 0; 1 for a failed check; 2, 3 and 70 by who can repair the
// error (base/error.h). Meanwhile std::cout and std::cerr lead to `out` and `err`, so only one may run at a time.
// Where this is one of many processes, only one of them says what goes wrong.
// Afterwards they, the number of threads and the handlers of SIGINT, SIGTERM and SIGHUP are as they were.
int run(const std::vector<std::string>& arguments, std::ostream& out, std::ostream& err);

}  // namespace startrail::cli

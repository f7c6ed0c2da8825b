#include <fcntl.h>
#include <malloc.h>
#include <unistd.h>

#include <iostream>

#include "cli/command.h"
#include "cli/run.h"
#include "cli/world.h"

namespace {

// A file or socket that took the number of a closed stream would be written to by whoever prints.
void open_streams() {
  for (int number = STDIN_FILENO; number <= STDERR_FILENO; ++number)
    if (fcntl(number, F_GETFD) < 0) static_cast<void>(open("/dev/null", O_RDWR));
}

}  // namespace

int main(int argc, char** argv) {
  open_streams();
  // Blocks come and go with every step of a plan: memory that is given back to the system each time, as the C library
  // would, has to be cleared each time. With a process for each rank that costs up to a quarter of the time.
  mallopt(M_MMAP_THRESHOLD, 1 << 30);
  mallopt(M_TRIM_THRESHOLD, 1 << 30);
  const int code = startrail::cli::run({argv + 1, argv + argc}, std::cout, std::cerr);
  if (!startrail::cli::opened_world()) return code;
  // One of many processes. When something went wrong its connections may not come apart in order, nor need they.
  if (code == 0 || code == startrail::cli::kStopped) startrail::cli::close_world();
  std::cout.flush();
  std::cerr.flush();
  _exit(code);
}

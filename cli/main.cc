#include <unistd.h>

#include <iostream>

#include "cli/run.h"
#include "cli/world.h"

int main(int argc, char** argv) {
  const int code = startrail::cli::run({argv + 1, argv + argc}, std::cout, std::cerr);
  if (!startrail::cli::opened_world()) return code;
  // One of many processes. When something went wrong its connections may not come apart in order, nor need they.
  if (code == 0) startrail::cli::close_world();
  std::cout.flush();
  std::cerr.flush();
  _exit(code);
}

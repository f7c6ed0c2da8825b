#include "startrail/base/system.h"

#include <unistd.h>

#include <cstdlib>

namespace startrail {

std::string host_name() {
  char name[256] = {};
  gethostname(name, sizeof name - 1);
  return name;
}

double clock_seconds(clockid_t clock) {
  timespec time{};
  clock_gettime(clock, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

std::filesystem::path cache_folder() {
  const auto variable = [](const char* name) {
    const char* value = std::getenv(name);
    return std::filesystem::path(value ? value : "");
  };
  if (const auto given = variable("XDG_CACHE_HOME"); given.is_absolute()) return given / "startrail";
  const auto home = variable("HOME");
  return home.is_absolute() ? home / ".cache" / "startrail" : "";
}

}  // namespace startrail

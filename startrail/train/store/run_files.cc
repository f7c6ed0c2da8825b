#include "startrail/train/store/run_files.h"

#include <charconv>
#include <cstdio>
#include <string_view>
#include <system_error>

namespace startrail {

std::string step_name(int64_t step) {
  char name[32];
  std::snprintf(name, sizeof name, "step-%08lld", static_cast<long long>(step));
  return name;
}

int64_t step_of(const std::string& name) {
  constexpr std::string_view kPrefix = "step-";
  int64_t step = -1;
  if (!name.starts_with(kPrefix)) return -1;
  const char* end = name.data() + name.size();
  const auto read = std::from_chars(name.data() + kPrefix.size(), end, step);
  return read.ec == std::errc() && read.ptr == end ? step : -1;
}

bool is_output(const std::filesystem::path& folder) {
  // What may not be looked at is not there; that the folder cannot be read is said by whoever lists it.
  const auto holds = [&](const char* name) {
    std::error_code none;
    return std::filesystem::exists(folder / name, none);
  };
  return holds(kStateFile) || holds(kWeightsFile) || holds(kDiffusersWeightsFile) ||
         (holds(kMetricsFile) && holds(kSettingsFile));
}

}  // namespace startrail

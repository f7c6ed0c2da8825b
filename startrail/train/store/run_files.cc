#include "startrail/train/store/run_files.h"

#include <system_error>

namespace startrail {

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

// A run's numbers for TensorBoard: a file of TFRecords that hold protobuf Events with scalars, both written by hand as
// the few bytes they are. Beside metrics.jsonl, which has the same numbers for everything else.
#pragma once

#include <filesystem>
#include <string_view>
#include <utility>
#include <vector>

#include "startrail/train/loop/metrics.h"

namespace startrail {

// CRC-32C (Castagnoli).
uint32_t crc32c(std::string_view bytes);

class EventFile {
 public:
  // A new file in the run's folder, named by the time. Those of earlier starts are cut where they go beyond `step`,
  // since the run goes on from there.
  EventFile(const std::filesystem::path& run, int64_t step);
  // As throw_file_error, when the disk is full say.
  void write(const StepReport& report);
  void write(int64_t step, double validation);

 private:
  void write_scalars(int64_t step, const std::vector<std::pair<const char*, double>>& scalars);
  void write_record(const std::string& event);

  std::string file_;
  std::ofstream out_;
};

}  // namespace startrail

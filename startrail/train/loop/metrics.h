// What a step reports, and a run's record of it: metrics.jsonl. Its first line says what the run is, the others have
// one step or one validation each; a run that was gone on with says so again at that place.
#pragma once

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <optional>
#include <string>
#include <vector>

#include "startrail/plan/volume.h"

namespace startrail {

struct StepReport {
  int64_t step = 0, steps = 0;  // done, and in all
  double loss = 0;              // mean over the valid tokens of the step
  double gradient_norm = 0, learning_rate = 0;
  double seconds = 0;  // of this step
  int64_t tokens = 0;  // trained on since the start
  double tokens_per_second = 0;
  double wait_share = 0;             // of the ranks' time, spent waiting for messages
  int64_t peak_bytes = 0;            // tensor memory, of the rank with most so far
  Volume attention;                  // bytes sent for attention by the busiest rank
  int64_t weight_bytes = 0;          // bytes sent for gradients and weights by the busiest rank
  std::optional<double> validation;  // when it was measured after this step
  double save_seconds = 0;           // when it was saved after this step
};

constexpr int kMetricsFormat = 1;

// What a run is.
struct RunHead {
  int64_t step = 0;  // after which it starts, or goes on
  std::string name = {}, loss_unit = {};
  int64_t estimated_bytes = 0;                                // of a rank, before the start; 0: not known
  std::vector<std::pair<std::string, std::string>> config{};  // what was set: keys and values
};

class Metrics {
 public:
  // Goes on with what is in the run's folder, without what is of later steps: lines, and samples. UserError when it
  // cannot be written.
  Metrics(const std::filesystem::path& run, const RunHead& head);
  // As throw_file_error, when the disk is full say.
  void write(const StepReport& report);
  void write(int64_t step, double validation);

 private:
  void write_line(const std::string& line);

  double elapsed() const;  // seconds since the start of the run, all its parts together

  std::string file_;
  std::ofstream out_;
  double started_ = 0;
};

// Lists what a run could not use, in its skipped.txt; there is none when that is nothing.
void write_skipped(const std::filesystem::path& run, const std::vector<std::string>& problems);

}  // namespace startrail

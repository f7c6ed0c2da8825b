// What `train` says before, during and after a run, for people and as JSON.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>

#include "startrail/train/loop/estimate.h"
#include "startrail/train/loop/job.h"

namespace startrail::cli {

void print_job(const TrainJob& job, const Estimate& e, const World& world);
void print_summary(const TrainJob& job, const TrainingResult& result, const Estimate& e);

nlohmann::json to_json(const TrainJob& job, const Estimate& e, int64_t base);
nlohmann::json to_json(const TrainingResult& result, const Source& source);

// One live line on a terminal; elsewhere a plain line now and then.
class Display {
 public:
  explicit Display(double seconds_between);
  void show(const StepReport& r, size_t skipped);
  void finish() const;

 private:
  double between_, since_ = 0, spent_ = 0;
  int64_t steps_ = 0;
  bool live_, diverged_ = false;
  std::optional<double> validation_;
};

}  // namespace startrail::cli

#include "startrail/train/loop/metrics.h"

#include <cerrno>
#include <cmath>
#include <nlohmann/json.hpp>

#include "startrail/base/error.h"
#include "startrail/base/trace.h"
#include "startrail/base/version.h"
#include "startrail/train/store/run_files.h"

namespace startrail {

namespace fs = std::filesystem;

namespace {

nlohmann::json head_json(const RunHead& head) {
  nlohmann::json config = nlohmann::json::object();
  for (const auto& [key, value] : head.config) config[key] = value;
  return {{"format", kMetricsFormat},
          {"kind", "run"},
          {"version", kVersion},
          {"step", head.step},
          {"name", head.name},
          {"loss_unit", head.loss_unit},
          {"estimated_bytes", head.estimated_bytes > 0 ? nlohmann::json(head.estimated_bytes) : nlohmann::json()},
          {"units",
           {{"seconds", "s"},
            {"elapsed", "s"},
            {"peak_bytes", "bytes"},
            {"attention_bytes", "bytes"},
            {"weight_bytes", "bytes"},
            {"wait_share", "of the ranks' time"}}},
          {"config", config}};
}

std::string text_of(const nlohmann::json& json) {
  return json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);  // a folder's name need not be UTF-8
}

void drop_samples(const fs::path& folder, int64_t step) {
  if (!fs::is_directory(folder)) return;
  for (const auto& entry : fs::directory_iterator(folder))
    if (step_of(entry.path().stem()) > step) fs::remove(entry.path());
}

}  // namespace

Metrics::Metrics(const fs::path& run, const RunHead& head) : file_((run / kMetricsFile).string()) {
  std::vector<std::string> kept;
  double elapsed = 0;
  if (std::ifstream old(file_); old && head.step > 0)
    for (std::string line; std::getline(old, line);) {
      const auto json = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
      const auto number = [&](const char* key) {  // or -1, also in a line that is no object
        const auto found = json.find(key);
        return found != json.end() && found->is_number() ? found->get<double>() : -1;
      };
      const double step = number("step");
      if (step < 0 || step > static_cast<double>(head.step)) continue;
      if (json.contains("kind") && step == static_cast<double>(head.step)) continue;  // this head, again
      kept.push_back(line);
      // Records of old have the seconds of each step only.
      elapsed = number("elapsed") >= 0 ? number("elapsed") : elapsed + std::max(0.0, number("seconds"));
    }
  started_ = RankTrace::now_us() * 1e-6 - elapsed;
  kept.push_back(text_of(head_json(head)));
  // Under another name until it is whole: the old lines must outlive a kill.
  const fs::path fresh = cat(file_, ".partial");
  out_.open(fresh, std::ios::trunc);
  for (const std::string& line : kept) out_ << line << "\n";
  if (!out_.flush()) throw_file_error(file_, "cannot be written", errno);
  fs::rename(fresh, file_);
  drop_samples(run / kSampleFolder, head.step);
}

// To a millisecond.
double Metrics::elapsed() const { return std::round((RankTrace::now_us() * 1e-6 - started_) * 1000) / 1000; }

void Metrics::write(const StepReport& report) {
  const nlohmann::json json = {{"step", report.step},
                               {"loss", report.loss},
                               {"gradient_norm", report.gradient_norm},
                               {"learning_rate", report.learning_rate},
                               {"seconds", report.seconds},
                               {"elapsed", elapsed()},
                               {"tokens", report.tokens},
                               {"tokens_per_second", report.tokens_per_second},
                               {"wait_share", report.wait_share},
                               {"peak_bytes", report.peak_bytes},
                               {"attention_bytes", report.attention.total()},
                               {"weight_bytes", report.weight_bytes}};
  write_line(json.dump());
}

void Metrics::write(int64_t step, double validation) {
  write_line(nlohmann::json{{"step", step}, {"validation", validation}, {"elapsed", elapsed()}}.dump());
}

void Metrics::write_line(const std::string& line) {
  out_ << line << std::endl;
  if (!out_) throw_file_error(file_, "cannot be written", errno);
}

void write_skipped(const fs::path& run, const std::vector<std::string>& problems) {
  const fs::path file = run / kSkippedFile;
  fs::remove(file);  // of an earlier start
  if (problems.empty()) return;
  std::ofstream out(file);
  for (const std::string& problem : problems) out << problem << "\n";
  if (!out.flush()) throw_file_error(file.string(), "cannot be written", errno);
}

}  // namespace startrail

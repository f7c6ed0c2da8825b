#include "startrail/train/loop/metrics.h"

#include <cerrno>
#include <nlohmann/json.hpp>

#include "startrail/base/error.h"
#include "startrail/train/store/run_files.h"

namespace startrail {

namespace fs = std::filesystem;

Metrics::Metrics(const fs::path& file, int64_t step) : file_(file.string()) {
  std::vector<std::string> kept;
  if (std::ifstream old(file); old)
    for (std::string line; std::getline(old, line);) {
      const auto json = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
      if (json.is_object() && json.value("step", int64_t{0}) <= step) kept.push_back(line);
    }
  // Under another name until it is whole: the old lines must outlive a kill.
  const fs::path fresh = cat(file.string(), ".partial");
  out_.open(fresh, std::ios::trunc);
  for (const std::string& line : kept) out_ << line << "\n";
  if (!out_.flush()) throw_file_error(file.string(), "cannot be written", errno);
  fs::rename(fresh, file);
}

void Metrics::write(const StepReport& report) {
  const nlohmann::json json = {{"step", report.step},
                               {"loss", report.loss},
                               {"gradient_norm", report.gradient_norm},
                               {"learning_rate", report.learning_rate},
                               {"seconds", report.seconds},
                               {"tokens_per_second", report.tokens_per_second},
                               {"wait_share", report.wait_share},
                               {"peak_bytes", report.peak_bytes},
                               {"attention_bytes", report.attention.total()},
                               {"weight_bytes", report.weight_bytes}};
  write_line(json.dump());
}

void Metrics::write(int64_t step, double validation) {
  write_line(nlohmann::json{{"step", step}, {"validation", validation}}.dump());
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

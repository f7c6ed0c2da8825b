// Runs for the page and the terminal: metrics.jsonl as columns, what the run was told, and its samples.
#include <algorithm>
#include <cmath>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <regex>
#include <sstream>

#include "cli/page/page.h"
#include "startrail/base/error.h"
#include "startrail/base/file.h"
#include "startrail/train/loop/metrics.h"
#include "startrail/train/store/run_files.h"

namespace startrail::cli {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr const char* kColumns[] = {"loss",          "tokens_per_second", "wait_share", "peak_bytes", "learning_rate",
                                    "gradient_norm", "seconds",           "elapsed",    "tokens"};
constexpr size_t kMostSamples = 24;  // on a page; of more, evenly spaced ones

// Five digits, as many as can be told apart on a picture; what is no number is null.
json digits(const json& value) {
  if (!value.is_number()) return nullptr;
  if (value.is_number_integer()) return value;
  const double number = value;
  if (!std::isfinite(number)) return nullptr;
  if (number == 0) return 0;
  const double scale = std::pow(10, 4 - std::floor(std::log10(std::abs(number))));
  const double kept = std::round(number * scale) / scale;
  return std::isfinite(kept) ? kept : number;
}

struct Record {
  json head = json::object();  // the newest; empty in records of old
  std::map<int64_t, json> steps, validations;
  int64_t unread = 0;  // lines that are no rows
};

// Other writers than ours put down NaN and infinities, which JSON does not have.
json parse_row(const std::string& line) {
  json row = json::parse(line, nullptr, /*allow_exceptions=*/false);
  if (!row.is_discarded()) return row;
  static const std::regex no_number(R"((:\s*)(NaN|-?Infinity|-?nan|-?inf)\b)");
  return json::parse(std::regex_replace(line, no_number, "$1null"), nullptr, /*allow_exceptions=*/false);
}

Record read_record(const fs::path& file) {
  std::ifstream in(file);
  if (!in) throw UserError(cat(file.string(), " cannot be read"));
  Record record;
  for (std::string line; std::getline(in, line);) {
    if (line.empty()) continue;
    json row = parse_row(line);
    if (!row.is_object() || !row.contains("step") || !row["step"].is_number_integer()) {
      if (!in.eof()) ++record.unread;  // the last line may be half there: a run is writing it
      continue;
    }
    const int64_t step = row["step"];
    json& place = row.value("kind", json()) == "run" ? record.head
                  : row.contains("validation")       ? record.validations[step]
                                                     : record.steps[step];
    place = std::move(row);  // of a step that was done twice the later one counts
  }
  return record;
}

// Records of old do not say how long a run has taken and what it has seen.
void add_sums(std::map<int64_t, json>& steps) {
  double elapsed = 0, tokens = 0;
  const auto number = [](const json& row, const char* key) {
    const auto found = row.find(key);
    return found != row.end() && found->is_number() ? found->get<double>() : 0.0;
  };
  for (auto& [step, row] : steps) {
    elapsed = row.contains("elapsed") ? number(row, "elapsed") : elapsed + number(row, "seconds");
    tokens = row.contains("tokens") ? number(row, "tokens")
                                    : tokens + number(row, "seconds") * number(row, "tokens_per_second");
    row["elapsed"] = elapsed;
    row["tokens"] = std::round(tokens);
  }
}

std::string bytes_of(const fs::path& file) {
  std::ifstream in(file, std::ios::binary);
  std::ostringstream bytes;
  bytes << in.rdbuf();
  return bytes.str();
}

json samples_of(const fs::path& folder) {
  std::map<int64_t, fs::path> files;
  std::error_code none;
  for (const auto& entry : fs::directory_iterator(folder, none))
    if (const int64_t step = step_of(entry.path().stem()); step >= 0) files[step] = entry.path();
  json samples = json::array();
  size_t number = 0, last = 0;
  for (const auto& [step, file] : files) {
    // Evenly spaced, and the last one among them.
    const size_t place = files.size() <= kMostSamples ? number : (number + 1) * kMostSamples / files.size();
    const bool shown = files.size() <= kMostSamples || place > last;
    last = place;
    ++number;
    if (!shown) continue;
    json sample = {{"step", step}};
    if (file.extension() == ".png") {
      sample.update(
          {{"image", cat("data:image/png;base64,", base64(bytes_of(file)))}, {"caption", "a row for each class"}});
    } else {
      const json text = json::parse(bytes_of(file), nullptr, /*allow_exceptions=*/false);
      if (!text.is_object()) continue;  // half written
      for (const char* key : {"prompt", "text"})
        if (text.contains(key) && text[key].is_string()) sample[key] = text[key];
    }
    samples.push_back(std::move(sample));
  }
  return samples;
}

}  // namespace

json run_view(const fs::path& folder) {
  const fs::path file = folder / kMetricsFile;
  if (!fs::exists(file))
    throw UserError(
        cat(folder.string(), " holds no run: there is no ", kMetricsFile, "; give the run.folder of startrail train"));
  Record record = read_record(file);
  if (record.head.contains("format") && record.head["format"] != kMetricsFormat)
    throw UserError(cat(file.string(), " is in another form: this startrail reads form ", kMetricsFormat));
  if (record.unread > 0 && record.steps.empty() && record.validations.empty() && record.head.empty())
    throw UserError(cat(file.string(), " is no run's record: none of its lines is a row with a step"));
  add_sums(record.steps);
  const auto told = [&](const char* key) { return record.head.contains(key) ? record.head[key] : json(); };
  const std::string own = fs::weakly_canonical(folder).filename().string();
  const auto text = [&](const char* key, const std::string& otherwise) {
    const json found = told(key);
    return found.is_string() ? found.get<std::string>() : otherwise;
  };
  json view = {{"name", text("name", own)},
               {"folder", folder.string()},
               {"unread", record.unread},
               {"version", told("version")},
               {"loss_unit", text("loss_unit", "nats a token")},
               {"estimated_bytes", told("estimated_bytes")},
               {"step", json::array()},
               {"config", json::array()},
               {"validation", json::array()},
               {"samples", samples_of(folder / kSampleFolder)}};
  for (const char* column : kColumns) view[column] = json::array();
  for (const auto& [step, row] : record.steps) {
    view["step"].push_back(step);
    for (const char* column : kColumns) view[column].push_back(digits(row.value(column, json())));
  }
  for (const auto& [step, row] : record.validations)
    view["validation"].push_back({step, digits(row["validation"]), digits(row.value("elapsed", json()))});
  if (record.head.contains("config") && record.head["config"].is_object())
    for (const auto& [key, value] : record.head["config"].items())
      view["config"].push_back({key, value.is_string() ? value : json(value.dump())});
  return view;
}

}  // namespace startrail::cli

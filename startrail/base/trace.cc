#include "startrail/base/trace.h"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <sstream>

#include "startrail/base/error.h"

namespace startrail {
namespace {

using nlohmann::json;

json arguments_of(const TraceEvent& event) {
  json args = json::object();
  if (event.peer >= 0) args.update({{"from", event.peer}, {"bytes", event.bytes}});
  if (!event.label.pass.empty()) args["pass"] = event.label.pass;
  if (event.label.layer >= 0) args["layer"] = event.label.layer;
  if (event.label.step >= 0) args["step"] = event.label.step;
  if (!event.label.block.empty()) args["block"] = event.label.block;
  return args;
}

// The events of a rank on its own clock.
void append_events(std::vector<json>& all, const RankTrace& trace) {
  const int id = trace.rank();
  all.push_back({{"ph", "M"}, {"name", "process_name"}, {"pid", id}, {"args", {{"name", cat("rank ", id)}}}});
  all.push_back({{"ph", "M"}, {"name", "process_sort_index"}, {"pid", id}, {"args", {{"sort_index", id}}}});
  all.push_back({{"ph", "M"}, {"name", "thread_name"}, {"pid", id}, {"tid", 0}, {"args", {{"name", "work"}}}});
  int64_t number = 0;
  for (const TraceEvent& event : trace.events()) {
    json args = arguments_of(event);
    if (event.peer < 0) {
      json span = {{"ph", "X"}, {"name", event.name},   {"pid", id},
                   {"tid", 0},  {"ts", event.start_us}, {"dur", event.end_us - event.start_us}};
      if (!args.empty()) span["args"] = std::move(args);
      all.push_back(std::move(span));
      continue;
    }
    // Messages overlap each other: asynchronous pairs, which the viewer puts on rows of their own.
    json pair = {{"ph", "b"},
                 {"cat", "transfer"},
                 {"name", cat(event.name, " from ", event.peer)},
                 {"pid", id},
                 {"id", cat(id, "-", number++)},
                 {"ts", event.start_us},
                 {"args", std::move(args)}};
    all.push_back(pair);
    pair["ph"] = "e";
    pair["ts"] = event.end_us;
    pair.erase("args");
    all.push_back(std::move(pair));
  }
}

std::string events_text(const std::vector<json>& events) {
  std::string text = "{\"displayTimeUnit\": \"ms\", \"traceEvents\": [\n";
  for (size_t i = 0; i < events.size(); ++i) text += (i == 0 ? "" : ",\n") + events[i].dump();
  return text + "\n]}\n";
}

void append_shifted(std::vector<json>& all, const std::string& text, double shift_us, const std::string& name) {
  try {
    json trace = json::parse(text);
    for (json& event : trace.at("traceEvents")) {
      if (event.contains("ts")) event["ts"] = event["ts"].get<double>() + shift_us;
      all.push_back(std::move(event));
    }
  } catch (const json::exception&) {
    throw UserError(cat(name, " is not a trace of a rank: it was not written, or not to its end"));
  }
}

void start_at_zero(std::vector<json>& events) {
  double origin = std::numeric_limits<double>::infinity();
  for (const json& event : events)
    if (event.contains("ts")) origin = std::min(origin, event["ts"].get<double>());
  for (json& event : events)
    if (event.contains("ts")) event["ts"] = event["ts"].get<double>() - origin;
}

}  // namespace

double RankTrace::now_us() {
  return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

std::string trace_text(const RankTrace& trace) {
  std::vector<json> events;
  append_events(events, trace);
  return events_text(events);
}

void write_traces(const std::filesystem::path& file, const std::vector<std::string>& texts,
                  const std::vector<double>& shift_us) {
  std::vector<json> events;
  for (size_t i = 0; i < texts.size(); ++i)
    append_shifted(events, texts[i], i < shift_us.size() ? shift_us[i] : 0, cat("what rank ", i, " sent"));
  start_at_zero(events);
  std::ofstream out(file);
  out << events_text(events);
  if (out.flush()) return;
  const int code = errno;
  out.close();
  std::error_code ignored;
  if (std::filesystem::is_regular_file(file, ignored)) std::filesystem::remove(file, ignored);  // half of it is no use
  throw_file_error(cat("the trace ", file.string()), "cannot be written", code);
}

void merge_traces(const std::vector<std::filesystem::path>& files, const std::filesystem::path& into,
                  const std::vector<double>& shift_us) {
  std::vector<std::string> texts;
  for (const auto& file : files) {
    std::ifstream in(file);
    std::ostringstream text;
    text << in.rdbuf();
    std::vector<json> parsed;
    append_shifted(parsed, text.str(), 0, file.string());  // an error names the file
    texts.push_back(text.str());
  }
  write_traces(into, texts, shift_us);
}

}  // namespace startrail

#include "startrail/base/trace.h"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>

#include "startrail/base/error.h"
#include "startrail/base/version.h"

namespace startrail {
namespace {

using nlohmann::json;

json arguments_of(const TraceLabel& label) {
  json args = json::object();
  if (!label.pass.empty()) args["pass"] = label.pass;
  if (label.layer >= 0) args["layer"] = label.layer;
  if (label.step >= 0) args["step"] = label.step;
  if (!label.block.empty()) args["block"] = label.block;
  return args;
}

json span_json(int rank, const TraceEvent& event) {
  json span = {{"ph", "X"}, {"name", event.name},   {"cat", to_text(event.kind)},          {"pid", rank},
               {"tid", 0},  {"ts", event.start_us}, {"dur", event.end_us - event.start_us}};
  json args = arguments_of(event.label);
  if (event.peer >= 0) args.update({{"peer", event.peer}, {"bytes", event.bytes}});
  if (!args.empty()) span["args"] = std::move(args);
  return span;
}

// Where a message is sent and where it arrives are the ends of an arrow. Messages overlap each other, so what a rank
// receives is an asynchronous pair, which viewers put on a row of its own.
void append_message(std::vector<json>& all, int rank, const TraceMessage& message) {
  const int from = message.sent ? rank : message.peer, to = message.sent ? message.peer : rank;
  const std::string id = cat(from, "-", to, "-", message.tag, "-", message.number);
  const bool known = message.arrived_us >= 0;
  const double end = message.sent ? message.posted_us : known ? message.arrived_us : message.read_us;
  json arrow = {{"ph", message.sent ? "s" : "f"},
                {"cat", "message"},
                {"name", message.kind},
                {"pid", rank},
                {"tid", 0},
                {"id", id},
                {"ts", end}};
  if (!message.sent) arrow["bp"] = "e";
  all.push_back(std::move(arrow));
  if (message.sent) return;
  json args = arguments_of(message.label);
  args.update({{"from", from}, {"bytes", message.bytes}});
  json pair = {{"ph", "b"},   {"cat", "transfer"}, {"name", cat(message.kind, " from ", from)},
               {"pid", rank}, {"id", id},          {"ts", message.posted_us},
               {"args", args}};
  all.push_back(pair);
  pair["ph"] = "e";
  pair["ts"] = end;
  pair["args"] = known ? json{{"read_after", message.read_us - end}} : json{{"arrived", "earlier"}};
  all.push_back(std::move(pair));
}

void append_events(std::vector<json>& all, const RankTrace& trace) {
  const int id = trace.rank();
  all.push_back({{"ph", "M"}, {"name", "process_name"}, {"pid", id}, {"args", {{"name", cat("rank ", id)}}}});
  all.push_back({{"ph", "M"}, {"name", "process_sort_index"}, {"pid", id}, {"args", {{"sort_index", id}}}});
  all.push_back({{"ph", "M"}, {"name", "thread_name"}, {"pid", id}, {"tid", 0}, {"args", {{"name", "work"}}}});
  for (const TraceEvent& event : trace.events()) all.push_back(span_json(id, event));
  for (const TraceMessage& message : trace.messages()) append_message(all, id, message);
}

std::string events_text(const std::vector<json>& events, const json& about) {
  std::string text = cat("{\"displayTimeUnit\": \"ms\", \"otherData\": ", about.dump(), ", \"traceEvents\": [\n");
  for (size_t i = 0; i < events.size(); ++i) text += (i == 0 ? "" : ",\n") + events[i].dump();
  return text + "\n]}\n";
}

void append_shifted(std::vector<json>& all, const std::string& text, double shift_us, size_t rank) {
  try {
    json trace = json::parse(text);
    for (json& event : trace.at("traceEvents")) {
      if (event.contains("ts")) event["ts"] = event["ts"].get<double>() + shift_us;
      all.push_back(std::move(event));
    }
  } catch (const json::exception&) {
    throw UserError(cat("what rank ", rank, " sent is not a trace of a rank: it was not written, or not to its end"));
  }
}

// Viewers take numbers for the ends of arrows, and no other names.
void number_messages(std::vector<json>& events) {
  std::map<std::string, int64_t> numbers;
  for (json& event : events)
    if (const auto id = event.find("id"); id != event.end() && id->is_string())
      *id = numbers.try_emplace(id->get<std::string>(), static_cast<int64_t>(numbers.size()) + 1).first->second;
}

double nanoseconds_kept(double us) { return std::round(us * 1000) / 1000; }

void start_at_zero(std::vector<json>& events) {
  double origin = std::numeric_limits<double>::infinity();
  for (const json& event : events)
    if (event.contains("ts")) origin = std::min(origin, event["ts"].get<double>());
  for (json& event : events) {
    if (event.contains("ts")) event["ts"] = nanoseconds_kept(event["ts"].get<double>() - origin);
    if (event.contains("dur")) event["dur"] = nanoseconds_kept(event["dur"].get<double>());
    if (event.contains("args") && event["args"].contains("read_after"))
      event["args"]["read_after"] = nanoseconds_kept(event["args"]["read_after"].get<double>());
  }
}

}  // namespace

std::string to_text(TraceKind kind) {
  switch (kind) {
    case TraceKind::step:
      return "step";
    case TraceKind::phase:
      return "phase";
    case TraceKind::compute:
      return "compute";
    case TraceKind::communicate:
      return "communicate";
    case TraceKind::wait:
      return "wait";
    case TraceKind::turn:
      return "turn";
  }
  throw InternalError("unknown kind of event");
}

double RankTrace::now_us() {
  return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

std::string trace_text(const RankTrace& trace) {
  std::vector<json> events;
  append_events(events, trace);
  return events_text(events, json::object());
}

void write_traces(const std::filesystem::path& file, const std::vector<std::string>& texts, const json& about,
                  const std::vector<double>& shift_us) {
  std::vector<json> events;
  for (size_t i = 0; i < texts.size(); ++i) append_shifted(events, texts[i], i < shift_us.size() ? shift_us[i] : 0, i);
  number_messages(events);
  start_at_zero(events);
  json told = about;
  told.update({{"format", kTraceFormat}, {"kind", "trace"}, {"version", kVersion}});
  std::ofstream out(file);
  out << events_text(events, told);
  if (out.flush()) return;
  const int code = errno;
  out.close();
  std::error_code ignored;
  if (std::filesystem::is_regular_file(file, ignored)) std::filesystem::remove(file, ignored);  // half of it is no use
  throw_file_error(cat("the trace ", file.string()), "cannot be written", code);
}

}  // namespace startrail

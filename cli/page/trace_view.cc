// Traces for the page. A file has an object an event; the page has columns, with names and blocks listed once.
#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>

#include "cli/page/page.h"
#include "startrail/base/error.h"
#include "startrail/base/trace.h"

namespace startrail::cli {
namespace {

using nlohmann::json;

// Texts by the place at which they were first named.
class Names {
 public:
  int place(const std::string& name) {
    if (name.empty()) return -1;
    const auto [entry, fresh] = places_.try_emplace(name, static_cast<int>(places_.size()));
    if (fresh) list_.push_back(name);
    return entry->second;
  }
  json take() { return std::move(list_); }

 private:
  std::map<std::string, int> places_;
  json list_ = json::array();
};

constexpr int64_t kMostRanks = 4096;

// A tenth of a microsecond is enough to look at.
double rounded(double us) { return std::round(us * 10) / 10; }

// A number of an event's arguments, or -1.
int64_t argument(const json& event, const char* name) {
  const auto args = event.find("args");
  return args == event.end() ? -1 : args->value(name, int64_t{-1});
}
std::string text_argument(const json& event, const char* name) {
  const auto args = event.find("args");
  return args == event.end() ? "" : args->value(name, "");
}

struct Interval {
  double begin = -std::numeric_limits<double>::infinity(), end = std::numeric_limits<double>::infinity();
  bool holds(double us) const { return us >= begin && us < end; }
};

struct Transfer {
  std::optional<double> sent, posted, arrived, read;
  int from = -1, to = -1;
  std::string kind, block;
  int64_t bytes = 0;
};

class TraceView {
 public:
  TraceView(const json& events, const Interval& shown) : shown_(shown) {
    for (const json& event : events) {
      const std::string phase = event.at("ph");
      const auto rank = event.at("pid").get<int64_t>();
      if (rank < 0 || rank >= kMostRanks) throw UserError(cat("its rank ", rank, " is none of 0 to ", kMostRanks - 1));
      ranks_ = std::max(ranks_, static_cast<int>(rank) + 1);
      if (phase == "X") add_span(event);
      if (phase == "s" || phase == "b" || phase == "e") add_end(event, phase[0]);
    }
  }

  json take(json view) {
    view["ranks"] = ranks_;
    double begin = std::numeric_limits<double>::infinity(), end = 0;
    for (const auto& [rank, spans] : spans_)
      for (const json* event : spans) {
        begin = std::min(begin, time(*event));
        end = std::max(end, time(*event) + event->at("dur").get<double>());
      }
    origin_ = std::isfinite(begin) ? begin : 0;
    view["spans"] = json::array();
    for (int rank = 0; rank < ranks_; ++rank) view["spans"].push_back(spans_json(spans_[rank]));
    view["messages"] = messages_json();
    view["t_us"] = {0, rounded(std::max(0.0, end - origin_))};
    view["names"] = names_.take();
    view["blocks"] = blocks_.take();
    return view;
  }

 private:
  static double time(const json& event) { return event.at("ts"); }

  void add_span(const json& event) {
    if (shown_.holds(time(event))) spans_[event.at("pid")].push_back(&event);
  }

  void add_end(const json& event, char phase) {
    Transfer& transfer = transfers_[event.at("id").get<int64_t>()];
    if (phase == 's') transfer.sent = time(event);
    if (phase == 'e') {
      const bool known = event.contains("args") && event["args"].contains("read_after");
      if (known) transfer.arrived = time(event);
      transfer.read = time(event) + (known ? event["args"]["read_after"].get<double>() : 0);
    }
    if (phase != 'b') return;
    transfer.posted = time(event);
    transfer.to = event.at("pid");
    transfer.from = static_cast<int>(argument(event, "from"));
    transfer.bytes = argument(event, "bytes");
    transfer.kind = event.at("name").get<std::string>();
    transfer.kind = transfer.kind.substr(0, transfer.kind.find(' '));
    transfer.block = text_argument(event, "block");
  }

  static int category(const json& event) {
    for (TraceKind kind : kTraceKinds)
      if (event.value("cat", "") == to_text(kind)) return static_cast<int>(kind);
    return static_cast<int>(TraceKind::phase);
  }

  json spans_json(std::vector<const json*>& spans) {
    std::stable_sort(spans.begin(), spans.end(), [](const json* a, const json* b) {
      return std::pair(time(*a), -a->at("dur").get<double>()) < std::pair(time(*b), -b->at("dur").get<double>());
    });
    json rows = json::array();
    std::vector<double> open;  // ends of the spans around
    for (const json* event : spans) {
      const double start = time(*event), duration = event->at("dur");
      while (!open.empty() && open.back() <= start + 5e-4) open.pop_back();
      std::vector<json> row{rounded(start - origin_),
                            rounded(duration),
                            names_.place(event->at("name")),
                            category(*event),
                            open.size(),
                            names_.place(text_argument(*event, "pass")),
                            argument(*event, "layer"),
                            argument(*event, "step"),
                            blocks_.place(text_argument(*event, "block")),
                            argument(*event, "peer"),
                            argument(*event, "bytes")};
      while (row.back() == -1) row.pop_back();
      rows.push_back(row);
      open.push_back(start + duration);
    }
    return rows;
  }

  json messages_json() {
    json rows = json::array();
    const auto moment = [&](const std::optional<double>& us) { return us ? json(rounded(*us - origin_)) : json(); };
    for (const auto& [id, t] : transfers_)
      if (t.posted && t.read && shown_.holds(*t.posted))
        rows.push_back({t.from, t.to, names_.place(t.kind), t.bytes, moment(t.sent), moment(t.posted),
                        moment(t.arrived), moment(t.read), blocks_.place(t.block)});
    return rows;
  }

  Interval shown_;
  int ranks_ = 0;
  double origin_ = 0;
  std::map<int, std::vector<const json*>> spans_;
  std::map<int64_t, Transfer> transfers_;  // by the number of the message
  Names names_, blocks_;
};

// From the first rank's start of the last step to the last rank's end of it.
std::pair<Interval, std::string> last_step(const json& events) {
  std::map<std::string, Interval> steps;
  std::string last;
  double latest = -1;
  for (const json& event : events) {
    if (event.at("ph") != "X" || event.value("cat", "") != to_text(TraceKind::step)) continue;
    const std::string name = event.at("name");
    const double start = event.at("ts"), end = start + event.at("dur").get<double>();
    const auto [entry, fresh] = steps.try_emplace(name, Interval{start, end});
    entry->second.begin = std::min(entry->second.begin, start);
    entry->second.end = std::max(entry->second.end, end);
    if (start > latest) {
      latest = start;
      last = name;
    }
  }
  return last.empty() ? std::pair(Interval{}, last) : std::pair(steps[last], last);
}

// "training, steps 1 to 3, 2048 tokens, ...": under which conditions.
std::string note_of(const json& about) {
  std::vector<std::string> parts;
  const auto add = [&](const char* key, const std::string& before, const std::string& after) {
    if (about.contains(key) && about[key].is_primitive() && !about[key].is_null())
      parts.push_back(cat(before, about[key].is_string() ? about[key].get<std::string>() : about[key].dump(), after));
  };
  add("what", "", "");
  if (about.contains("steps") && about["steps"].is_array() && about["steps"].size() == 2)
    parts.push_back(cat("steps ", about["steps"][0].dump(), " to ", about["steps"][1].dump()));
  add("tokens", "", " tokens");
  add("heads", "", " heads");
  add("dim", "of dim ", "");
  add("mask", "mask ", "");
  add("precision", "", "");
  add("comm", "ranks connected by ", "");
  add("ranks_here", "", " of them sharing a machine");
  add("threads_each", "threads of each: ", "");
  return join(parts);
}

}  // namespace

json trace_view(const json& trace, const std::filesystem::path& file, int64_t most_bytes) {
  const json about = trace.value("otherData", json::object());
  if (!about.is_object() || about.value("kind", json()) != "trace" || about.value("format", json()) != kTraceFormat)
    throw UserError(cat(
        file.string(), " is a trace, but not one that this startrail wrote: record it with train or attend --profile"));
  std::error_code none;
  const auto size = static_cast<int64_t>(std::filesystem::file_size(file, none));
  try {
    const json& events = trace.at("traceEvents");
    json view = {{"name", about.value("name", file.filename().string())},
                 {"file", file.string()},
                 {"source", about.value("source", "measured")},
                 {"note", note_of(about)},
                 {"version", about.value("version", "")},
                 {"about", about},
                 {"wait_share", about.value("wait_share", json())},
                 {"shortened", nullptr}};
    Interval shown;
    if (!none && size > most_bytes) {
      const auto [interval, name] = last_step(events);
      if (name.empty()) throw UserError("it is too large to show, and has no steps to pick one of");
      shown = interval;
      view["wait_share"] = nullptr;  // it was counted over all steps
      view["shortened"] = cat("only ", name, " is shown: the file has ", human_bytes(static_cast<double>(size)));
    }
    return TraceView(events, shown).take(std::move(view));
  } catch (const UserError& error) {
    throw UserError(cat(file.string(), " cannot be shown: ", error.what()));
  } catch (const json::exception&) {
    throw UserError(cat(file.string(), " is no whole trace: an event lacks what it must have; record it again"));
  }
}

}  // namespace startrail::cli

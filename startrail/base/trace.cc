#include "startrail/run/trace.h"

#include <chrono>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>

#include "startrail/base/error.h"

namespace startrail {

double RankTrace::now_us() {
  return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

void RankTrace::span(std::string name, double start_us) {
  events_.push_back({std::move(name), start_us, now_us(), -1, 0});
}

void RankTrace::transfer(std::string name, int peer, int64_t bytes, double start_us) {
  events_.push_back({std::move(name), start_us, now_us(), peer, bytes});
}

void write_trace(const std::filesystem::path& file, const std::vector<std::shared_ptr<RankTrace>>& ranks) {
  double origin = std::numeric_limits<double>::infinity();
  for (const auto& rank : ranks)
    for (const auto& event : rank->events_) origin = std::min(origin, event.start_us);
  std::ofstream out(file);
  out << "{\"displayTimeUnit\": \"ms\", \"traceEvents\": [\n";
  const char* separator = "";
  const auto put = [&](const nlohmann::json& json) {
    out << separator << json.dump();
    separator = ",\n";
  };
  for (const auto& rank : ranks) {
    const int id = rank->rank_;
    put({{"ph", "M"}, {"name", "process_name"}, {"pid", id}, {"args", {{"name", cat("rank ", id)}}}});
    put({{"ph", "M"}, {"name", "process_sort_index"}, {"pid", id}, {"args", {{"sort_index", id}}}});
    put({{"ph", "M"}, {"name", "thread_name"}, {"pid", id}, {"tid", 0}, {"args", {{"name", "work"}}}});
    int64_t number = 0;
    for (const auto& event : rank->events_) {
      const double start = event.start_us - origin;
      if (event.peer < 0) {
        put({{"ph", "X"},
             {"name", event.name},
             {"pid", id},
             {"tid", 0},
             {"ts", start},
             {"dur", event.end_us - event.start_us}});
        continue;
      }
      // Messages overlap each other: asynchronous pairs, which the viewer puts on rows of their own.
      nlohmann::json pair = {{"ph", "b"},
                             {"cat", "transfer"},
                             {"name", cat(event.name, " from ", event.peer)},
                             {"pid", id},
                             {"id", cat(id, "-", number++)},
                             {"ts", start},
                             {"args", {{"from", event.peer}, {"bytes", event.bytes}}}};
      put(pair);
      pair["ph"] = "e";
      pair["ts"] = event.end_us - origin;
      pair.erase("args");
      put(pair);
    }
  }
  out << "\n]}\n";
  if (!out.flush())
    throw UserError(cat("the trace ", file.string(), " cannot be written: give a file in a folder that exists"));
}

}  // namespace startrail

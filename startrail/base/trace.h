// What a rank did and when, for a timeline in Perfetto or chrome://tracing. A rank writes down its own, without locks.
// Traces of ranks that share a process or whose clocks are known are written into one file; others are written one file
// a rank and merged later.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

namespace startrail {

// Which part of the work an event belongs to, so that it can be laid beside the plan; what is not known is left out.
struct TraceLabel {
  std::string pass;
  int layer = -1;
  int64_t step = -1;  // index in the rank's list
  std::string block;  // what the step works on, or the message carries
};

struct TraceEvent {
  std::string name;
  double start_us = 0, end_us = 0;
  TraceLabel label = {};
  int peer = -1;      // of a message that was received; -1: the rank's own work
  int64_t bytes = 0;  // of a message
};

class RankTrace {
 public:
  explicit RankTrace(int rank) : rank_(rank) {}

  // Microseconds on a clock that all ranks of this host share.
  static double now_us();

  // Work may contain other work; messages, from when their receive was posted until they were there, may overlap.
  void add(TraceEvent event) { events_.push_back(std::move(event)); }

  int rank() const { return rank_; }
  const std::vector<TraceEvent>& events() const { return events_; }

 private:
  int rank_;
  std::vector<TraceEvent> events_;
};

// A rank's events on its own clock, as a whole trace.
std::string trace_text(const RankTrace& trace);

// Writes one trace of several ranks': one process for each, with a track for its work and one for what it receives; the
// first event begins at 0. `shift_us` is added to the clock of each, none means 0. UserError when the file cannot be
// written, or a text is not a trace.
void write_traces(const std::filesystem::path& file, const std::vector<std::string>& texts,
                  const std::vector<double>& shift_us = {});

// The same from files that hold such texts.
void merge_traces(const std::vector<std::filesystem::path>& files, const std::filesystem::path& into,
                  const std::vector<double>& shift_us = {});

}  // namespace startrail

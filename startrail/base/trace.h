// What a rank did and when, for `startrail show` and for a timeline in Perfetto or chrome://tracing. A rank writes down
// its own, without locks: spans of work and of waiting, which nest, and messages as it saw them. Traces of all ranks,
// with what is known of their clocks, are then written into one file.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <tuple>
#include <vector>

#include <nlohmann/json_fwd.hpp>

namespace startrail {

constexpr int kTraceFormat = 1;

// Which part of the work an event belongs to, so that it can be laid beside the plan; what is not known is left out.
struct TraceLabel {
  std::string pass;
  int layer = -1;
  int64_t step = -1;  // index in the rank's list
  std::string block;  // what the step works on, or the message carries
};

enum class TraceKind {
  step,         // of training, or a whole attention: what shares of time are shares of
  phase,        // forward, backward, optimizer, ...
  compute,      // a plan's step that computes
  communicate,  // a plan's step that posts and joins messages
  wait,         // for a message or for all ranks
  turn,         // for a core to compute on
};
inline constexpr TraceKind kTraceKinds[] = {TraceKind::step,        TraceKind::phase, TraceKind::compute,
                                            TraceKind::communicate, TraceKind::wait,  TraceKind::turn};
std::string to_text(TraceKind kind);

struct TraceEvent {
  std::string name;
  TraceKind kind = TraceKind::phase;
  double start_us = 0, end_us = 0;
  TraceLabel label = {};
  int peer = -1;  // of the message that was waited for
  int64_t bytes = 0;
};

// A message as one of its ends saw it. Both call it by sender, receiver, tag and number, which is the sender's and the
// receiver's count of such messages since they record.
struct TraceMessage {
  bool sent = false;
  std::string kind;
  int peer = -1, tag = 0;
  int64_t number = 0, bytes = 0;
  double posted_us = 0;
  double arrived_us = -1;  // of one received; -1: not known, but no later than it was read
  double read_us = 0;      // of one received: when it had been waited for
  TraceLabel label = {};
};

class RankTrace {
 public:
  explicit RankTrace(int rank) : rank_(rank) {}

  // Microseconds on a clock that all ranks of this host share.
  static double now_us();

  void add(TraceEvent event) { events_.push_back(std::move(event)); }
  // Spans of waiting are many, and most of them nothing: those too short to be seen are left out.
  void add_wait(TraceEvent event) {
    if (event.end_us - event.start_us >= 1) add(std::move(event));
  }
  void add_message(TraceMessage message) { messages_.push_back(std::move(message)); }
  // The number of one more message to or from `peer`.
  int64_t count(bool sent, int peer, int tag) { return counts_[{sent, peer, tag}]++; }

  int rank() const { return rank_; }
  const std::vector<TraceEvent>& events() const { return events_; }
  const std::vector<TraceMessage>& messages() const { return messages_; }

 private:
  int rank_;
  std::vector<TraceEvent> events_;
  std::vector<TraceMessage> messages_;
  std::map<std::tuple<bool, int, int>, int64_t> counts_;
};

// A rank's events on its own clock, as a whole trace.
std::string trace_text(const RankTrace& trace);

// Writes one trace of several ranks': one process for each, with a track for its work and one for what it receives, and
// arrows from where a message was sent to where it arrived; the first event begins at 0. `about` says what was traced;
// "format", "kind" and "version" are added. `shift_us` is added to the clock of each, none means 0. UserError when the
// file cannot be written, or a text is not a trace.
void write_traces(const std::filesystem::path& file, const std::vector<std::string>& texts, const nlohmann::json& about,
                  const std::vector<double>& shift_us = {});

}  // namespace startrail

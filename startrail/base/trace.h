// What a rank did and when, for a timeline in Perfetto or chrome://tracing. A rank writes down its own, without locks;
// write_trace joins them.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

namespace startrail {

class RankTrace {
 public:
  explicit RankTrace(int rank) : rank_(rank) {}

  // Microseconds on a clock that all ranks of this process share.
  static double now_us();

  // Work of the rank's own, from `start_us` until now. Spans may contain each other.
  void span(std::string name, double start_us);
  // A message, from when its receive was posted until it was there and read.
  void transfer(std::string name, int peer, int64_t bytes, double start_us);

 private:
  struct Event {
    std::string name;
    double start_us, end_us;
    int peer;       // -1 for work
    int64_t bytes;  // of a message
  };
  int rank_;
  std::vector<Event> events_;
  friend void write_trace(const std::filesystem::path&, const std::vector<std::shared_ptr<RankTrace>>&);
};

// One process per rank, with a track for its work and one for what it receives. UserError when the file cannot be
// written.
void write_trace(const std::filesystem::path& file, const std::vector<std::shared_ptr<RankTrace>>& ranks);

}  // namespace startrail

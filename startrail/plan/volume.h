// What a plan sends, to the byte: counted message by message from its steps, and by the closed formulas of
// docs/algorithm.md, which know only the grid. check.cc demands that the two agree.
#pragma once

#include <cstdint>
#include <functional>

#include "startrail/cluster/cluster.h"
#include "startrail/layout/layout.h"
#include "startrail/plan/plan.h"

namespace startrail {

// One attention: shapes, element sizes and who owns which tokens.
struct Problem {
  int64_t batch = 1;
  int heads = 1, key_heads = 1;
  int64_t dim = 64;
  int element_bytes = 4;  // q, k, v, dout and finished results
  int partial_bytes = 4;  // partial out, dq, dk, dv
  int stat_bytes = 4;     // lse and delta
  Layout queries, keys;   // one chunk per rank each
};

enum class Traffic { p2p, gather, merge, all_to_all };
inline constexpr Traffic kTraffic[] = {Traffic::p2p, Traffic::gather, Traffic::merge, Traffic::all_to_all};
std::string to_text(Traffic kind);

// Bytes sent by one rank, by kind.
struct Volume {
  int64_t bytes[4] = {0, 0, 0, 0};

  int64_t& operator[](Traffic kind) { return bytes[static_cast<int>(kind)]; }
  int64_t operator[](Traffic kind) const { return bytes[static_cast<int>(kind)]; }
  int64_t total() const { return bytes[0] + bytes[1] + bytes[2] + bytes[3]; }
  bool operator==(const Volume&) const = default;
};

// Bytes of a block whose values take `value_bytes` each; lse and delta take stat_bytes. `plan` says the pass and
// slices.
int64_t block_bytes(const Block& block, const Plan& plan, const Problem& problem, int value_bytes);

// Bytes of `chunk` in one slice, as an all-to-all sends it: values only, in the type they travel in.
int64_t traded_bytes(Data data, int chunk, const Plan& plan, const Problem& problem);

struct Message {
  Traffic kind;
  int peer;  // who receives it
  int64_t bytes;
};

// Calls `visit` for everything `rank` sends. Empty messages are not sent and not visited.
void each_message(const Plan& plan, int rank, const Problem& problem, const std::function<void(const Message&)>& visit);

Volume count_volume(const Plan& plan, int rank, const Problem& problem);

// Bytes that leave the sender's node.
int64_t count_crossing(const Plan& plan, int rank, const Problem& problem, const Cluster& cluster);

// The same from the closed formulas, summed over real chunk lengths where these differ.
Volume formula_volume(const Grid& grid, Pass pass, int rank, const Problem& problem);

// The backward direction that sends fewer bytes in all (keys when equal).
Pass cheaper_backward(const Grid& grid, const Problem& problem);

// Key/value heads that each slice of the heads holds: at least one, so they are copied when there are fewer than
// slices.
inline int key_heads_of_slice(int key_heads, int slices) { return key_heads > slices ? key_heads / slices : 1; }

}  // namespace startrail

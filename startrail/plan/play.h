// What a rank's steps mean, said once: the buffers they work on, and for each step what it waits for, reads, adds to,
// sends, receives, gives away and frees. check.cc (with sets), volume.cc (with bytes), memory.cc (with sizes) and
// run/executor.cc (with tensors) follow it; none of them looks at an operation to find these out.
#pragma once

#include <optional>

#include "startrail/plan/plan.h"

namespace startrail {

enum class Traffic { p2p, gather, merge, all_to_all };
inline constexpr Traffic kTraffic[] = {Traffic::p2p, Traffic::gather, Traffic::merge, Traffic::all_to_all};
std::string to_text(Traffic kind);

// Sends of one channel (a peer, a kind of traffic and of data) that may be under way at once. Before one more is posted
// the oldest is waited for, and before a collective all but the newest; a collective's own are over when all that it
// receives was waited for. So a rank holds few sent blocks, however far behind their receiver is.
inline constexpr size_t kOpenSends = 2;

// Neighbours in a buffer, from its chunk number `first` on: a view of its memory.
struct Run {
  int first = 0, count = 0;

  bool operator==(const Run&) const = default;
};

// Two lists of runs of the same chunks, cut where either is.
std::vector<std::pair<Run, Run>> paired(const std::vector<Run>& a, const std::vector<Run>& b);

// Some chunks of a buffer, in the order in which a step names them.
struct Part {
  int buffer = -1;
  std::vector<Run> runs;  // one when they are neighbours
  int slice = kAllHeads;  // of a buffer of all heads: only this slice of them
};

struct Message {
  Traffic kind = Traffic::p2p;
  int peer = -1;
  Block block;  // what travels
  Part part;    // what it is taken from, or where it belongs
};

// One of the things that make up a result: a message, or what is here already.
struct Ingredient {
  int receive = -1;  // which of the action's receives; -1: `part`
  Part part;
  int slice = kAllHeads;  // of the result's heads, those it brings
};

// What a step receives, on its way to a buffer until a later step reads it there.
struct Arrival {
  size_t action = 0;
  Part into;
  std::vector<int> receives;            // of the action
  std::vector<Ingredient> ingredients;  // joined in this order, then added to what is there; none: received in place
  bool ends = false;                    // the last of a collective: the action's sends are over with it
};

// One step. Its parts happen in the order in which they stand here.
struct Action {
  struct Send {
    size_t action, index;
  };
  struct Copy {
    Part from, to;
  };

  std::vector<int> waits;                // arrivals that must have come, and are joined
  std::vector<Send> finishes;            // sends that must be done: their memory is free after that
  std::vector<int> makes;                // buffers made here
  std::vector<Part> reads;               // as the step names them: in, with
  std::vector<Part> adds;                // to what an attend adds: out; or query_grad, keys_grad
  std::vector<Copy> copies;              // the rank's own share of what is put together
  std::vector<Message> sends, receives;  // posted as one
  std::vector<int> arrivals;             // that begin here
  std::vector<int> frees;                // buffers that no later step needs
};

struct Play {
  int rank = 0;
  std::vector<Block> buffers;   // their chunks lie one after the other
  std::vector<int> inputs;      // buffers that the rank starts with
  std::vector<Action> actions;  // one a step
  std::vector<Arrival> arrivals;
  std::vector<int> last_waits;  // arrivals that the results wait for
  std::vector<Part> results;    // the finished blocks
  std::vector<int> kept;        // buffers that outlive the steps: results, and what a backward needs or was given

  // A block among those kept. InternalError when there is none.
  Part kept_part(const Block& block) const;
};

// The blocks a rank starts with, in the order query, keys (forward) or out_grad, keys, saved (backward). What the
// forward left for a backward is in the form in which it attended: the heads group's chunks of one slice.
std::vector<Block> inputs_of(const PlanHead& head, const Steps& steps, int rank);
// What is left when all is done: out, or query_grad and keys_grad, of its own chunks.
std::vector<Block> results_of(const PlanHead& head, int rank);

// UserError, naming rank and step, for steps that break the rules of their operation or read what the rank does not
// hold, whatever the other ranks do. `results` are checked to be there at the end.
Play play_steps(const PlanHead& head, const Steps& steps, int rank, const std::vector<Block>& results);
Play play_rank(const Plan& plan, int rank);

// "plan is wrong at rank 3, step 2 (attend ...): "; the end's index is the number of steps.
std::string place_text(const Steps& steps, int rank, size_t index);

}  // namespace startrail

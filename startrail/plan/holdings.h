// What one rank holds while its steps are followed: its buffers, and which of their chunks are there. Used by play.cc
// only, which says how steps change it.
#pragma once

#include <optional>

#include "startrail/plan/play.h"

namespace startrail {

// Where `chunks` lie in a table, or nothing when some do not.
std::optional<std::vector<Run>> runs_of(const std::vector<int>& table, const std::vector<int>& chunks);

class Holdings {
 public:
  static constexpr size_t kNever = -1;

  // Adds what it makes to `buffers`.
  explicit Holdings(std::vector<Block>& buffers) : buffers_(buffers) {}

  int make(const Block& block);
  Part whole(int buffer) const;
  Part part(int buffer, const std::vector<int>& chunks, int slice = kAllHeads) const;

  // There, or on its way.
  void hold(const Part& part) { set(part, Place::held); }
  // A partial result that leaves, or is used up, in this step.
  void give(const Part& part, size_t step);

  // In the newest buffer that holds all of a block. Several may: a gathered block repeats the rank's own.
  std::optional<Part> find(const Block& block) const;
  // Where a partial result of these chunks is, or will be: in a buffer that holds some of them and has room for the
  // others, or in a new one with room for as much of `table` as is not held elsewhere, so that what is added to other
  // chunks later finds its place there. Nothing when what is there lies in several places.
  std::optional<Part> find_room(const Block& block, const std::vector<int>& table);

  // The chunks of a buffer that are held.
  Block held(int buffer) const;

  struct State {
    std::vector<int> arriving;                 // arrivals not yet waited for
    bool made = false;                         // has memory
    size_t last_use = kNever, given = kNever;  // steps
  };
  State& state(const Part& part) { return slots_[part.buffer].state; }
  const State& state(int buffer) const { return slots_[buffer].state; }

 private:
  // Of a chunk in a buffer: nothing was put there yet, it is there or on its way, it was given away.
  enum class Place : char { fresh, held, given };
  struct Slot {
    std::vector<Place> places;
    size_t given = 0;  // how many of them were
    State state = {};
  };
  void set(const Part& part, Place place);
  bool is(int buffer, int place, Place what) const { return slots_[buffer].places[place] == what; }
  // The newest buffer whose places of these chunks all pass.
  template <class Passes>
  std::optional<Part> newest(const Block& block, const Passes& passes) const;

  std::vector<Block>& buffers_;
  std::vector<Slot> slots_;
  std::vector<int> live_;  // buffers of which not all was given away
};

}  // namespace startrail

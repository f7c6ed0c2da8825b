#include "startrail/plan/holdings.h"

#include <algorithm>

namespace startrail {

std::optional<std::vector<Run>> runs_of(const std::vector<int>& table, const std::vector<int>& chunks) {
  if (table == chunks) return std::vector<Run>{{0, static_cast<int>(table.size())}};
  std::vector<Run> runs;
  size_t next = 0;  // chunks that are named together mostly lie together
  for (int chunk : chunks) {
    if (next >= table.size() || table[next] != chunk)
      next = std::find(table.begin(), table.end(), chunk) - table.begin();
    if (next == table.size()) return std::nullopt;
    if (!runs.empty() && runs.back().first + runs.back().count == static_cast<int>(next))
      ++runs.back().count;
    else
      runs.push_back({static_cast<int>(next), 1});
    ++next;
  }
  return runs;
}

int Holdings::make(const Block& block) {
  buffers_.push_back(block);
  slots_.push_back({std::vector<Place>(block.chunks.size())});
  live_.push_back(static_cast<int>(buffers_.size()) - 1);
  return live_.back();
}

Part Holdings::whole(int buffer) const { return {buffer, {{0, static_cast<int>(buffers_[buffer].chunks.size())}}}; }

Part Holdings::part(int buffer, const std::vector<int>& chunks, int slice) const {
  return {buffer, *runs_of(buffers_[buffer].chunks, chunks), slice};
}

void Holdings::set(const Part& part, Place place) {
  for (const Run& run : part.runs) std::fill_n(slots_[part.buffer].places.begin() + run.first, run.count, place);
}

void Holdings::give(const Part& part, size_t step) {
  set(part, Place::given);
  state(part).given = step;
  Slot& slot = slots_[part.buffer];
  for (const Run& run : part.runs) slot.given += run.count;
  if (slot.given == slot.places.size()) std::erase(live_, part.buffer);
}

template <class Passes>
std::optional<Part> Holdings::newest(const Block& block, const Passes& passes) const {
  for (auto live = live_.rbegin(); live != live_.rend(); ++live) {
    const int buffer = *live;
    const Block& there = buffers_[buffer];
    if (there.data != block.data || there.slice != block.slice || there.chunks.size() < block.chunks.size()) continue;
    const auto runs = runs_of(there.chunks, block.chunks);
    if (runs && std::all_of(runs->begin(), runs->end(), [&](const Run& run) {
          for (int place = run.first; place < run.first + run.count; ++place)
            if (!passes(buffer, place)) return false;
          return true;
        }))
      return Part{buffer, *runs};
  }
  return std::nullopt;
}

std::optional<Part> Holdings::find(const Block& block) const {
  return newest(block, [&](int buffer, int place) { return is(buffer, place, Place::held); });
}

std::optional<Part> Holdings::find_room(const Block& block, const std::vector<int>& table) {
  const auto elsewhere = [&](int chunk) { return find({block.data, {chunk}, block.slice}).has_value(); };
  const auto room = newest(block, [&](int buffer, int place) {
    return is(buffer, place, Place::held) ||
           (is(buffer, place, Place::fresh) && !elsewhere(buffers_[buffer].chunks[place]));
  });
  if (room) return room;
  Block fresh{block.data, {}, block.slice};
  for (int chunk : table)
    if (!elsewhere(chunk)) fresh.chunks.push_back(chunk);
  const auto runs = runs_of(fresh.chunks, block.chunks);
  if (!runs) return std::nullopt;
  return Part{make(fresh), *runs};
}

Block Holdings::held(int buffer) const {
  Block left{buffers_[buffer].data, {}, buffers_[buffer].slice};
  for (size_t i = 0; i < buffers_[buffer].chunks.size(); ++i)
    if (is(buffer, static_cast<int>(i), Place::held)) left.chunks.push_back(buffers_[buffer].chunks[i]);
  return left;
}

}  // namespace startrail

// What the passes do to bring their inputs into the kernel's layout and their results back, and nothing between: for
// benchmarks, which show its share. Made of the passes' own parts.
#pragma once

#include "startrail/run/kernel/cpu/backward.h"
#include "startrail/run/kernel/cpu/forward.h"

namespace startrail::cpu {
namespace {  // one copy per level

template <typename Level>
struct Packing {
  static void forward(const Forward& work, int64_t begin, int64_t end, void* scratch) {
    if constexpr (Level::kPairs)
      if (work.problem.bfloat16) return pack_forward<uint32_t>(work, begin, end, scratch);
    pack_forward<float>(work, begin, end, scratch);
  }
  static void backward(const Backward& work, int64_t range, int64_t begin, int64_t end, void* scratch) {
    if constexpr (Level::kPairs)
      if (work.problem.bfloat16) return pack_backward<uint32_t>(work, range, begin, end, scratch);
    pack_backward<float>(work, range, begin, end, scratch);
  }

  template <typename Word>
  static void pack_forward(const Forward& work, int64_t begin, int64_t end, void* scratch) {
    using Pass = ForwardPass<Level>;
    const Problem& p = work.problem;
    const typename Pass::Tiles tiles(p, begin, end);
    const typename Pass::template Room<Word> room(p.dim, tiles.count, scratch);
    Pass::load_rows(work, tiles, room);
    const int64_t most = Pass::panel_keys(p.dim);
    for (int64_t r = 0; r < p.range_count; ++r) {
      const Extent here = extent(p.ranges[r], begin, end - begin);
      for (int64_t panel = here.first / most * most; panel < here.last; panel += most)
        Pass::pack_panel(p, p.ranges[r], panel, smaller(p.ranges[r].count - panel, most), room);
    }
    Pass::store_rows(work, tiles, room);
  }

  template <typename Word>
  static void pack_backward(const Backward& work, int64_t range_index, int64_t begin, int64_t end, void* scratch) {
    using Pass = BackwardPass<Level>;
    const Problem& p = work.problem;
    const KeyRange& range = p.ranges[range_index];
    const int64_t n = end - begin, padded = round_up(p.dim, Pass::kLanes);
    const typename Pass::template Room<Word> room(p.dim, n, scratch);
    Pass::pack_keys(p, range, begin, n, room);
    for (int64_t i = 0; i < n * padded; ++i) room.dkeys[i] = room.dvalues[i] = 0;
    for (int64_t head = 0; head < p.heads; ++head)
      for (int64_t row = 0; row < p.queries; row += Pass::kBackwardRows) {
        const int64_t rows = smaller(Pass::kBackwardRows, p.queries - row);
        const bool seen = !extent(range, row, rows).none(begin, end);
        const typename Pass::RowTile tile(work, range, head, row, rows);
        if (seen) {
          Pass::pack_rows(work, tile, !tile.seen.every(begin, end), room);
          for (int64_t i = 0; i < tile.strips * Pass::kLanes * p.dim; ++i) room.dqueries[i] = 0;
        }
        work.turn(work.context, head, row / Pass::kBackwardRows, true);
        if (seen) Pass::add_dq(work, tile, room);
        work.turn(work.context, head, row / Pass::kBackwardRows, false);
      }
    Pass::add_dk_dv(work, range.begin + begin, n, room);
  }
};

}  // namespace
}  // namespace startrail::cpu

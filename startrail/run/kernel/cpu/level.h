// What a processor level (level_avx2.cc, ...) gives to flash.cc: attention of a few query rows to many keys, and the
// gradients of a few keys from many query rows; and to a model's other parts the work of row_work.h. Plain memory and
// plain types: these files are compiled for processors this machine may not be, so they share no inline code with the
// rest of the program.
#pragma once

#include <cstdint>

#include "startrail/run/kernel/cpu/row_work.h"

namespace startrail::cpu {

constexpr int64_t kLargestDim = 1024;

namespace {  // one copy per level

inline constexpr int64_t round_up(int64_t n, int64_t step) { return (n + step - 1) / step * step; }
// The length, a multiple of `unit`, of pieces of n that are all about as long: `wanted`, or up to an eighth more where
// that saves a short last one.
inline constexpr int64_t even_step(int64_t n, int64_t wanted, int64_t unit) {
  const int64_t least = (n - wanted / 8 + wanted - 1) / wanted, pieces = least < 1 ? 1 : least;
  return round_up((n + pieces - 1) / pieces, unit);
}
inline constexpr int64_t longest_step(int64_t wanted, int64_t unit) { return round_up(wanted + wanted / 8, unit); }

}  // namespace

// Rows of one head, `dim` dense elements each; `row` and `head` are strides in elements.
struct Rows {
  const void* data;
  int64_t row, head;
};
struct FloatRows {
  float* data;
  int64_t row, head;
};

// Keys [begin, begin + count) of the block. Query row i sees those of [seen_begin[i], seen_end[i]), counted from
// `begin`; null: every row sees all of them.
struct KeyRange {
  int64_t begin, count;
  const int32_t *seen_begin, *seen_end;
};

// The heads of one GQA group, which share keys.
struct Problem {
  Rows q, k, v;   // q: `heads` heads; k and v: one
  bool bfloat16;  // else float32
  int64_t heads, queries, dim;
  float scale;
  const KeyRange* ranges;
  int64_t range_count;
};

struct Forward {
  Problem problem;
  FloatRows out, lse;  // the running result
};

struct Backward {
  Problem problem;
  Rows dout;
  FloatRows lse, delta;
  FloatRows dq, dk, dv;
  // Called before and after dq's rows of one head and query tile are added to, so that key blocks take turns.
  void (*turn)(void* context, int64_t head, int64_t tile, bool begin);
  void* context;
};

struct Level {
  const char* name;
  int64_t forward_rows;   // rows of a forward tile
  int64_t backward_rows;  // rows of a backward tile, as `turn` counts them
  // Adds attention of rows [begin, end) of all heads to the running result.
  void (*forward)(const Forward& work, int64_t begin, int64_t end, void* scratch);
  int64_t (*forward_scratch_bytes)(int64_t dim, int64_t rows);  // rows: of all heads
  // Adds what keys [begin, end) of a range contribute to dq, and their dk and dv.
  void (*backward)(const Backward& work, int64_t range, int64_t begin, int64_t end, void* scratch);
  int64_t (*backward_scratch_bytes)(int64_t dim, int64_t keys);
  RowWork rows;
  // What forward and backward do to bring inputs into their layout and results back, without the work between: for
  // benchmarks.
  struct {
    void (*forward)(const Forward& work, int64_t begin, int64_t end, void* scratch);
    void (*backward)(const Backward& work, int64_t range, int64_t begin, int64_t end, void* scratch);
  } packing;
};

// Null where the compiler does not have it; whether the processor does is the caller's to ask.
const Level* avx512_bf16_level();
const Level* avx512_level();
const Level* avx2_level();
const Level* portable_level();

}  // namespace startrail::cpu

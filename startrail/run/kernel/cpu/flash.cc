// Flash attention on vectors (flash.h) as a tile kernel: picks the processor's level, says which rows see which keys,
// and shares the work among the caller's threads.
//
// Forward tasks are blocks of query rows and share nothing. Backward tasks are blocks of keys: each owns its dk and dv,
// and all add to dq, row tile by row tile in the order of the blocks, so that sums do not depend on who is faster.
// Blocks of keys do not depend on the number of threads, and what a row gets not on its block: so no bit of the result
// depends on the number of threads.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <algorithm>
#include <atomic>
#include <limits>

#include "startrail/base/error.h"
#include "startrail/base/text.h"
#include "startrail/run/kernel/cpu/cpu.h"

namespace startrail::cpu {
namespace {

constexpr int64_t kTaskRows = 1024;  // query rows of a forward task: keys are packed again for each
// Keys of a backward task: few enough that they and their gradients stay in the second-level cache, and enough to pay
// for packing all queries.
constexpr int64_t kTaskKeys = 512, kLeastTaskKeys = 128;

// Key ranges with what each query row sees of them.
struct Ranges {
  std::vector<KeyRange> ranges;
  std::vector<std::vector<int32_t>> bounds;
};

Ranges make_ranges(const AttendInput& input) {
  Ranges made;
  int64_t begin = 0;
  for (const Piece& keys : input.keys) {
    STARTRAIL_CHECK(keys.count <= std::numeric_limits<int32_t>::max(), keys.count);
    int full = 0, empty = 0;
    for (const Piece& queries : input.queries) {
      const TileClass kind = classify(*input.band, queries, keys);
      full += kind == TileClass::full;
      empty += kind == TileClass::empty;
    }
    const int pieces = static_cast<int>(input.queries.size());
    if (full == pieces) {
      KeyRange* last = made.ranges.empty() ? nullptr : &made.ranges.back();
      if (last && last->seen_begin == nullptr && last->begin + last->count == begin &&
          last->count + keys.count <= std::numeric_limits<int32_t>::max())
        last->count += keys.count;
      else
        made.ranges.push_back({begin, keys.count, nullptr, nullptr});
    } else if (empty < pieces) {
      std::vector<int32_t> from, to;
      for (const Piece& queries : input.queries)
        for (int64_t i = 0; i < queries.count; ++i) {
          const Span seen = seen_indices(*input.band, queries.at(i), keys);
          from.push_back(static_cast<int32_t>(seen.begin));
          to.push_back(static_cast<int32_t>(seen.end));
        }
      made.bounds.push_back(std::move(from));
      made.bounds.push_back(std::move(to));
      made.ranges.push_back({begin, keys.count, made.bounds[made.bounds.size() - 2].data(), made.bounds.back().data()});
    }
    begin += keys.count;
  }
  return made;
}

void expect_dense(const at::Tensor& t) { STARTRAIL_CHECK(t.size(-1) <= 1 || t.stride(-1) == 1, t.strides()); }

void expect_type(const at::Tensor& t, const at::Tensor& q) {
  STARTRAIL_CHECK(t.scalar_type() == q.scalar_type(), t.scalar_type());
}

Rows rows_of(const at::Tensor& t, int64_t batch, int64_t head) {
  expect_dense(t);
  const int64_t at = batch * t.stride(0) + head * t.stride(1);
  return {static_cast<const char*>(t.const_data_ptr()) + at * t.element_size(), t.stride(2), t.stride(1)};
}

// Also of [batch, heads, rows].
FloatRows float_rows_of(const at::Tensor& t, int64_t batch, int64_t head) {
  if (t.dim() == 4) expect_dense(t);
  return {t.data_ptr<float>() + batch * t.stride(0) + head * t.stride(1), t.stride(2), t.stride(1)};
}

// Threads that take tasks 0, 1, ... until there are none; each has scratch memory of its own.
void share(int64_t tasks, int64_t scratch_bytes, const std::function<void()>& before_each,
           const std::function<void(int64_t task, void* scratch)>& run) {
  const int64_t workers = std::min<int64_t>(tasks, at::get_num_threads());
  if (workers == 0) return;
  const int64_t stride = (scratch_bytes + 63) / 64 * 64;
  const at::Tensor scratch = at::empty({workers * stride}, at::kByte);
  std::atomic<int64_t> next = 0;
  at::parallel_for(0, workers, 1, [&](int64_t worker, int64_t) {
    // A task that was taken is always finished, since later ones may be waiting for it.
    while (true) {
      if (before_each) before_each();
      const int64_t task = next.fetch_add(1);
      if (task >= tasks) return;
      run(task, scratch.data_ptr<uint8_t>() + worker * stride);
    }
  });
}

int64_t forward_block(const Level& level, const CallSize& size, int threads) {
  const int64_t rows = size.batch * size.key_heads * size.queries;
  const int64_t most = kTaskRows * size.key_heads / size.heads, even = rows / (4 * threads);
  return even_step(size.queries, std::max(level.forward_rows, std::min(most, even)), level.forward_rows);
}

// Does not depend on the threads.
int64_t backward_block(const CallSize& size) {
  return std::clamp<int64_t>(size.batch * size.key_heads * size.keys / 16, kLeastTaskKeys, kTaskKeys);
}

class FlashKernel : public Kernel {
 public:
  explicit FlashKernel(const Level& level) : level_(level) {}

  std::string name() const override { return "flash"; }
  bool fits(at::ScalarType type, at::Device device, int64_t dim) const override {
    return device.is_cpu() && dim <= kLargestDim && (type == at::kFloat || type == at::kBFloat16);
  }
  int64_t scratch_bytes(const CallSize& size, int threads) const override {
    if (size.queries == 0 || size.keys == 0) return 0;
    const int64_t group = size.heads / size.key_heads;
    const int64_t block = size.backward ? backward_block(size) : forward_block(level_, size, threads);
    const int64_t tasks =
        size.batch * size.key_heads * round_up(size.backward ? size.keys : size.queries, block) / block;
    const int64_t bytes = size.backward ? level_.backward_scratch_bytes(size.dim, longest_step(block, 2))
                                        : level_.forward_scratch_bytes(size.dim, block * group);
    return round_up(bytes, 64) * std::min<int64_t>(tasks, threads);
  }

  void attend(const AttendInput& input, Running& running) const override {
    if (input.q.size(2) == 0 || input.k.size(2) == 0) return;
    if (input.scale <= 0) return reference_kernel().attend(input, running);
    const Ranges ranges = make_ranges(input);
    const CallSize size = size_of(input, false);
    const int64_t group = size.heads / size.key_heads, block = forward_block(level_, size, at::get_num_threads());
    const int64_t blocks = round_up(size.queries, block) / block, groups = size.batch * size.key_heads;
    share(blocks * groups, level_.forward_scratch_bytes(size.dim, block * group), input.between_tiles,
          [&](int64_t task, void* scratch) {
            // The last rows first: with a causal mask they are the most work.
            const int64_t begin = (blocks - 1 - task / groups) * block, batch = task % groups / size.key_heads,
                          head = task % size.key_heads;
            Forward work{problem_of(input, ranges, batch, head), float_rows_of(running.out, batch, head * group),
                         float_rows_of(running.lse, batch, head * group)};
            level_.forward(work, begin, std::min(begin + block, size.queries), scratch);
          });
  }

  void attend_backward(const AttendBackwardInput& input, Gradients& gradients) const override {
    const AttendInput& forward = input.forward;
    if (forward.q.size(2) == 0 || forward.k.size(2) == 0) return;
    if (forward.scale <= 0) return reference_kernel().attend_backward(input, gradients);
    expect_type(input.dout, forward.q);
    const Ranges ranges = make_ranges(forward);
    const CallSize size = size_of(forward, true);
    struct Block {
      int64_t range, begin, end;
    };
    std::vector<Block> blocks;
    for (size_t r = 0; r < ranges.ranges.size(); ++r) {
      const int64_t count = ranges.ranges[r].count, step = even_step(count, backward_block(size), 2);
      for (int64_t begin = 0; begin < count; begin += step)
        blocks.push_back({static_cast<int64_t>(r), begin, std::min(begin + step, count)});
    }

    const int64_t group = size.heads / size.key_heads, groups = size.batch * size.key_heads;
    const int64_t tiles = round_up(size.queries, level_.backward_rows) / level_.backward_rows;
    std::vector<std::atomic<int32_t>> done(static_cast<size_t>(groups * group * tiles));  // blocks, by tile
    struct Turn {
      std::atomic<int32_t>* done;
      int64_t tiles;
      int32_t block;
    };
    share(static_cast<int64_t>(blocks.size()) * groups,
          level_.backward_scratch_bytes(size.dim, longest_step(backward_block(size), 2)), forward.between_tiles,
          [&](int64_t task, void* scratch) {
            const int64_t batch = task % groups / size.key_heads, head = task % size.key_heads;
            const Block& block = blocks[static_cast<size_t>(task / groups)];
            Turn turn{&done[static_cast<size_t>(task % groups * group * tiles)], tiles,
                      static_cast<int32_t>(task / groups)};
            const auto rows = [&](const at::Tensor& t) { return float_rows_of(t, batch, head * group); };
            Backward work{problem_of(forward, ranges, batch, head),
                          rows_of(input.dout, batch, head * group),
                          rows(input.lse),
                          rows(input.delta),
                          rows(gradients.dq),
                          float_rows_of(gradients.dk, batch, head),
                          float_rows_of(gradients.dv, batch, head),
                          [](void* context, int64_t head, int64_t tile, bool begin) {
                            const Turn& turn = *static_cast<const Turn*>(context);
                            std::atomic<int32_t>& done = turn.done[head * turn.tiles + tile];
                            if (begin) {
                              for (int32_t now = done; now != turn.block; now = done) done.wait(now);
                            } else {
                              done = turn.block + 1;
                              done.notify_all();
                            }
                          },
                          &turn};
            level_.backward(work, block.range, block.begin, block.end, scratch);
          });
  }

 private:
  static CallSize size_of(const AttendInput& input, bool backward) {
    return {input.q.size(0),
            input.q.size(1),
            input.k.size(1),
            input.q.size(2),
            input.k.size(2),
            input.q.size(3),
            static_cast<int>(input.q.element_size()),
            backward};
  }

  static Problem problem_of(const AttendInput& input, const Ranges& ranges, int64_t batch, int64_t head) {
    const int64_t group = input.q.size(1) / input.k.size(1);
    expect_type(input.k, input.q);
    expect_type(input.v, input.q);
    return {rows_of(input.q, batch, head * group),
            rows_of(input.k, batch, head),
            rows_of(input.v, batch, head),
            input.q.scalar_type() == at::kBFloat16,
            group,
            input.q.size(2),
            input.q.size(3),
            static_cast<float>(input.scale),
            ranges.ranges.data(),
            static_cast<int64_t>(ranges.ranges.size())};
  }

  const Level& level_;
};

}  // namespace

std::unique_ptr<Kernel> make_flash_kernel(const Level& level) { return std::make_unique<FlashKernel>(level); }

const Kernel& flash_kernel() {
  static const FlashKernel kernel(level());
  return kernel;
}

}  // namespace startrail::cpu

// Exact attention over tokens that are split over ranks: the library's front door.
// attention() is differentiable; the two plain functions below it are for those who save and recompute for themselves.
#pragma once

#include <array>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include <ATen/core/Tensor.h>

#include "startrail/layout/grid.h"
#include "startrail/layout/layout.h"
#include "startrail/layout/mask.h"
#include "startrail/plan/volume.h"
#include "startrail/run/comm/group.h"
#include "startrail/run/executor.h"

namespace startrail {

enum class Direction { automatic, keys, queries };  // what rides the rings in the backward pass
Direction parse_direction(std::string_view text);   // "auto", "keys", "queries"

struct AttentionOptions {
  Grid grid;                        // parse_grid("startrail:2", ranks)
  int64_t tokens = 0;               // of the whole sequence
  int64_t key_tokens = 0;           // 0: as many as tokens
  Order order = Order::contiguous;  // which of them each rank holds: chunk_pieces(Layout, rank)
  PieceLists listed, key_listed;    // for Order::listed; keys as queries when theirs are not given
  Mask mask;
  double scale = 0;                           // 0: 1 / sqrt(dim)
  Direction backward = Direction::automatic;  // automatic: the one that sends fewer bytes
  at::ScalarType partial = at::kFloat;        // partial results on the wire; the type of q halves them and loses digits
  std::string kernel = "auto";
  StepHook on_step;  // see executor.h
  int layer = -1;    // of a model, for the trace
};

// q [batch, heads, local query tokens, dim], k and v [batch, key heads, local key tokens, dim], the rank's own chunk in
// the order of chunk_pieces; float32, bfloat16 or float64. Returns out like q. Every rank of the group calls it with
// the same options. UserError, before anything is sent, for shapes, heads, grids or masks that do not fit.
// Differentiable once. The result is a view of tokens-first memory: clone it before changing it in place.
at::Tensor attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const AttentionOptions& options,
                     const std::shared_ptr<Group>& group);

struct AttentionShape {
  int64_t batch = 1;
  int heads = 1, key_heads = 1;
  int64_t dim = 64;
  at::ScalarType type = at::kFloat;
  at::Device device = at::kCPU;

  bool operator==(const AttentionShape&) const = default;
};

// Of a rank's tensors. UserError for such that are not of one attention, whatever the options.
AttentionShape shape_of(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v);

// Options and shapes that were checked once, and one rank's plans for them: for calls that repeat. Threads may share
// it.
class PreparedAttention {
 public:
  // UserError for options, heads and types that do not fit, or a group of another size.
  PreparedAttention(AttentionOptions options, const AttentionShape& shape, int rank, int ranks);
  ~PreparedAttention();

  const AttentionOptions& options() const { return options_; }
  // UserError for tensors that are not of these shapes, or hold other tokens than this rank's.
  void check(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v) const;
  int64_t query_tokens() const { return query_tokens_; }  // of this rank
  int64_t key_tokens() const { return key_tokens_; }

  // Both are made when they are first asked for, and stay.
  enum class Use { forward, backward, restore };
  const ExecutorOptions& how(Use use) const { return *part(use).how; }
  const std::shared_ptr<const Script>& script(Use use) const { return part(use).script; }
  Block own_block(Data data) const;  // as the backward needs it: of the heads group's chunks, one slice

 private:
  struct Part {
    std::mutex mutex;  // and no once_flag: making a part may throw
    std::optional<ExecutorOptions> how;
    std::shared_ptr<const Script> script;
  };
  const Part& part(Use use) const;

  AttentionOptions options_;
  AttentionShape shape_;
  int rank_, ranks_;
  int64_t query_tokens_, key_tokens_;
  mutable std::array<Part, 3> parts_;
};

// Which tokens each rank holds by these options.
Layout query_layout(const AttentionOptions& options);
Layout key_layout(const AttentionOptions& options);

// Where a rank's tokens are in the sequence, in the order it holds them: [own tokens] int64.
at::Tensor places_of(const Layout& layout, int rank);

// What the backward needs, in the layout of the heads slice.
struct SavedAttention {
  at::Tensor q, kv, out, lse;  // as blocks, tokens first (executor.h)
  int64_t key_heads = 0;       // of the whole model
};

struct AttentionResult {
  at::Tensor out;
  SavedAttention saved;
};

AttentionResult attention_forward(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                  const AttentionOptions& options, const std::shared_ptr<Group>& group);
AttentionResult attention_forward(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                  const PreparedAttention& prepared, Group& group);

// dq, dk, dv like q, k, v.
std::array<at::Tensor, 3> attention_backward(const at::Tensor& dout, const SavedAttention& saved,
                                             const AttentionOptions& options, const std::shared_ptr<Group>& group);
std::array<at::Tensor, 3> attention_backward(const at::Tensor& dout, const SavedAttention& saved,
                                             const PreparedAttention& prepared, Group& group);

// What attention_forward saved, from q, k, v made anew and the out and lse it saved: for those who keep only these two
// and recompute the rest. Attends nothing; with heads in the grid q, k and v are traded once more.
SavedAttention attention_restore(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const at::Tensor& out,
                                 const at::Tensor& lse, const AttentionOptions& options,
                                 const std::shared_ptr<Group>& group);
SavedAttention attention_restore(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const at::Tensor& out,
                                 const at::Tensor& lse, const PreparedAttention& prepared, Group& group);

// These options for shapes as given: what plans are priced with.
Problem make_problem(const AttentionOptions& options, int64_t batch, int heads, int key_heads, int64_t dim,
                     at::ScalarType type);

// The direction that options.backward means for a problem.
Pass backward_pass(const AttentionOptions& options, const Problem& problem);
}  // namespace startrail

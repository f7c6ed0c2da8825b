#include "startrail/train/loop/estimate.h"

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <optional>

#include "startrail/base/error.h"
#include "startrail/plan/memory.h"
#include "startrail/run/kernel/kernel.h"
#include "startrail/train/model/llama.h"

namespace startrail {
namespace {

// Bytes the busiest rank sends for one attention, forward and backward.
int64_t attention_volume(const Grid& grid, const Problem& problem, const Exchange& exchange) {
  int64_t most = 0;
  for (int rank = 0; rank < grid.ranks(); ++rank) most = std::max(most, exchange_bytes(grid, rank, problem, exchange));
  return most;
}

// Of one block on one rank that has `own` of the sequence's `tokens`, in bytes.
struct Activations {
  int64_t row, out, lse;  // the residual stream, and attention's results
  int64_t before, after;  // what the parts before and after attention hold in the backward pass
  int64_t all;            // what both save when nothing is recomputed
  int64_t ends = 0;       // what the busiest moment before or after all blocks holds
};

Activations activations(const LlamaConfig& model, int64_t own, int64_t, int64_t element) {
  const int64_t queries = model.heads * model.head_dim, keys = model.key_heads * model.head_dim;
  Activations a{own * model.dim * element, own * queries * element, own * model.heads * 4, 0, 0, 0};
  // Counted from what autograd saves (ops.cc) and the widest moment beside it.
  a.before = 3 * a.row + 2 * own * (queries + 2 * keys) * element;
  a.after = 3 * a.row + 2 * a.out + own * model.hidden * (element < 4 ? 4 * element + 8 : 5 * 4);
  a.all = 4 * a.row + 2 * a.out + own * 2 * keys * element + 3 * own * model.hidden * element + a.lse;
  if (model.head_norm()) {  // what goes into the norms, and a root for each head
    const int64_t normed = own * (queries + keys) * element + own * (model.heads + model.key_heads) * 4;
    a.before += normed;
    a.all += normed;
  }
  const bool narrow = element < 4;
  a.ends = 4 * a.row + std::min(own, loss_chunk(model.vocabulary)) * model.vocabulary * (narrow ? 14 : 12) +
           model.vocabulary * model.dim * (narrow ? 10 : 8);
  return a;
}

Activations activations(const DitConfig& model, int64_t own, int64_t tokens, int64_t element) {
  const int64_t row = own * model.dim() * element, wide_row = own * model.dim() * 4;
  Activations a{row, row, own * model.heads * 4, 0, 0, 0};
  const int64_t converted = element < 4 ? wide_row : 0;  // a product's operand in float32
  // In rows as wide as dim, the MLP's being four: what autograd saves and the widest moment beside it. Time and class
  // are one row, but packed pictures hold theirs for each token.
  constexpr int64_t kMlp = 4;
  const int64_t spread = tokens > model.tokens() ? 7 * row : 0;
  a.before = 9 * row + converted + spread;
  a.after = (6 + 3 * kMlp) * row + 2 * kMlp * converted + spread;
  a.all = (12 + 2 * kMlp) * row + a.lse + spread;
  a.ends = 4 * row + 6 * own * model.channels * model.patch_size() * 4;
  return a;
}

// Blocks, and what the kernel makes for itself.
int64_t attention_memory(const Grid& grid, Pass pass, const Problem& problem, int64_t own, const Kernel& kernel,
                         int threads) {
  CallSize call;
  call.heads = problem.heads / grid.heads;
  call.key_heads = key_heads_of_slice(problem.key_heads, grid.heads);
  call.queries = own * grid.heads * grid.team;
  call.keys = own * grid.heads * grid.stripe;
  call.dim = problem.dim;
  call.element_bytes = problem.element_bytes;
  call.backward = pass != Pass::forward;
  return peak_bytes(grid, pass, problem) + kernel.scratch_bytes(call, threads);
}

}  // namespace

Estimate estimate(const TrainConfig& config, const ModelConfig& shape, int threads) {
  const AttentionOptions options = attention_options(config, shape);
  if (threads == 0) threads = std::max(1, thread_count(config) / options.grid.ranks());
  const Dimensions model = dimensions(shape);
  const int64_t ranks = config.parallel.ranks, element = static_cast<int64_t>(c10::elementSize(compute_type(config)));
  const int sequence = options.grid.ranks();
  Estimate e;
  e.parameters = model.parameters;
  const int64_t shard = longest_shard(e.parameters, static_cast<int>(ranks));
  const bool narrow = element < 4;
  e.weights = e.parameters * element;
  e.gradients = e.parameters * (narrow ? 4 + element : 4);
  e.optimizer = shard * ((narrow ? 12 : 8) + (config.train.ema > 0 ? 4 : 0));
  // The sum of the gradients, and the pieces that are added to it: as much as all gradients where ranks are many, but
  // when activations are gone.
  const int64_t adding = ranks > 1 ? 4 * (shard + ranks * gradient_piece(shard, static_cast<int>(ranks))) : 0;

  const Problem problem = make_problem(options, 1, static_cast<int>(model.heads), static_cast<int>(model.key_heads),
                                       model.head_dim, compute_type(config));
  const int64_t own = problem.queries.longest();  // tokens of the rank with most
  const Activations a =
      std::visit([&](const auto& one) { return activations(one, own, config.train.tokens, element); }, shape);
  const bool traded = options.grid.heads > 1;  // out is kept in two layouts then
  e.saved = model.layers * (config.train.recompute ? a.row + a.out * (traded ? 2 : 1) + a.lse : a.all);
  const Kernel& kernel = choose_kernel(options.kernel, compute_type(config), at::kCPU, model.head_dim);
  const int64_t forward = attention_memory(options.grid, Pass::forward, problem, own, kernel, threads);
  const int64_t backward =
      attention_memory(options.grid, backward_pass(options, problem), problem, own, kernel, threads);
  const int64_t before = config.train.recompute ? a.before : 0;
  e.working =
      std::max({before + backward, a.before + forward, config.train.recompute ? a.after : 0, a.ends, adding - e.saved});

  const Exchange exchange = exchange_of(config);
  const int64_t attentions = model.layers * (config.train.batch / config.parallel.data_parallel);
  e.attention_bytes = attentions * attention_volume(options.grid, problem, exchange);
  e.ring_attention_bytes = attentions * attention_volume({.ring = sequence}, problem, exchange);
  for (int rank = 0; rank < ranks; ++rank) {
    const int64_t own = shard_of(e.parameters, rank, static_cast<int>(ranks)).size();
    e.weight_bytes = std::max(e.weight_bytes, ranks == 1 ? 0 : (e.parameters - own) * 4 + (ranks - 1) * own * element);
  }
  return e;
}

namespace {

// The first number after `name` in a file of names and numbers, or nothing.
std::optional<int64_t> number(const char* file, std::string_view name) {
  std::ifstream in(file);
  for (std::string line; std::getline(in, line);)
    if (line.starts_with(name)) return std::atoll(line.c_str() + name.size());
  return std::nullopt;
}

}  // namespace

std::string crowd_warning(int64_t ranks, int threads) {
  constexpr int64_t kEach = 8;
  // What a rank does in a step whatever its share of the tokens: calls, messages, its copy of the weights. Fitted to 16
  // to 256 ranks on 2 cores, 4,096 tokens, 0.9 M parameters (docs/troubleshooting.md).
  constexpr double kFixed = 0.6;
  if (ranks <= kEach * threads) return "";
  const double crowd = static_cast<double>(ranks) / static_cast<double>(kEach * threads);
  return cat(ranks, " ranks share ", plural(threads, "thread"), ", more than ", kEach, " to each: expect about 1/",
             fixed(1 + kFixed * (crowd - 1), crowd < 10 ? 1 : 0), " of the speed of ", kEach * threads,
             "; fewer ranks, or one process for each on more hosts, are faster");
}

int64_t process_memory() { return number("/proc/self/status", "VmRSS:").value_or(0) * 1024; }

int64_t available_memory() {
  int64_t bytes = number("/proc/meminfo", "MemAvailable:").value_or(int64_t{1} << 52) * 1024;
  int64_t limit = 0, used = 0;
  std::ifstream most("/sys/fs/cgroup/memory.max"), now("/sys/fs/cgroup/memory.current");
  if (most >> limit && now >> used) {
    // Cached files are counted as used, but make room when asked.
    for (const char* cached : {"inactive_file ", "active_file "})
      used -= number("/sys/fs/cgroup/memory.stat", cached).value_or(0);
    bytes = std::min(bytes, limit - used);
  }
  return bytes;
}

void check_memory(const TrainConfig& config, const ModelConfig& model, const Room& room) {
  const int64_t available = room.bytes, ranks = room.ranks > 0 ? room.ranks : config.parallel.ranks;
  const auto need = [&](const TrainConfig& c) { return estimate(c, model, room.threads).rank_bytes() * ranks; };
  const int64_t wanted = need(config);
  if (wanted <= available) return;
  std::string advice =
      cat("no length fits: choose a smaller model", config.parallel.ranks > 1 ? " or fewer ranks" : "");
  // A DiT's sequence is made of whole pictures.
  const auto* dit = std::get_if<DitConfig>(&model);
  const int64_t unit = dit ? dit->tokens() : 1;
  if (dit) advice = cat("choose a smaller picture, larger patches or a smaller model");
  TrainConfig shorter = config;
  int64_t low = 0, high = config.train.tokens / unit;
  while (high - low > std::max<int64_t>(1, low / 64)) {
    const int64_t middle = (low + high) / 2;
    shorter.train.tokens = middle * unit;
    (need(shorter) <= available ? low : high) = middle;
  }
  if (low > 0) advice = cat("train.tokens=", low * unit, " would fit");
  throw UserError(cat("this run needs about ", human_bytes(static_cast<double>(wanted)), " (",
                      human_bytes(static_cast<double>(wanted / ranks)), " on each of ", ranks,
                      ranks < config.parallel.ranks ? " ranks of this host), but " : " ranks), but ",
                      human_bytes(static_cast<double>(available)), " of memory is free: ", advice,
                      config.train.recompute ? "" : "; train.recompute=true needs less"));
}

}  // namespace startrail

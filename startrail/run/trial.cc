#include "startrail/run/trial.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <algorithm>
#include <atomic>
#include <cmath>
#include <limits>
#include <optional>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include "startrail/base/error.h"
#include "startrail/base/system.h"
#include "startrail/base/threads.h"
#include "startrail/run/comm/ranks.h"
#include "startrail/run/memory.h"

namespace startrail {
namespace {

void add_times(RankReport& report, const Counts& counts) {
  report.wait_seconds += counts.wait_seconds();
  for (const auto& [op, seconds] : counts.busy_seconds) report.busy_seconds[op] += seconds;
}

double largest(const at::Tensor& t) { return t.abs().max().item<double>(); }

// Relative to the truth's largest value; or, where the truth is zero but for rounding (a query that sees one key has no
// gradient), to the size of the terms that cancelled.
double relative_error(const at::Tensor& got, const at::Tensor& truth, double terms) {
  const double error = largest(got.to(at::kDouble) - truth), size = largest(truth);
  if (!std::isfinite(error)) return std::numeric_limits<double>::infinity();
  return error / (size > 1e-10 * terms ? size : terms);
}

// [queries, keys]: 0 where seen, -inf where not.
at::Tensor written_mask(const Mask& mask, int64_t tokens) {
  const Band band(mask, tokens, tokens);
  at::Tensor bias = at::full({tokens, tokens}, -std::numeric_limits<float>::infinity());
  for (int64_t q = 0; q < tokens; ++q) {
    const Span seen = band.keys_of(q);
    if (seen.end > seen.begin) bias[q].narrow(0, seen.begin, seen.end - seen.begin).zero_();
  }
  return bias;
}

// A report as numbers, for the other ranks, and back.
std::vector<double> pack(const RankReport& report) {
  std::vector<double> numbers;
  for (const Volume* volume : {&report.forward, &report.backward})
    for (Traffic kind : kTraffic) numbers.push_back(static_cast<double>((*volume)[kind]));
  numbers.insert(numbers.end(), {report.seconds, report.wait_seconds, static_cast<double>(report.peak_bytes),
                                 static_cast<double>(report.crossing_bytes), report.processor_seconds});
  for (const auto& [op, seconds] : report.busy_seconds) {
    numbers.push_back(static_cast<double>(op));
    numbers.push_back(seconds);
  }
  return numbers;
}

RankReport unpack(const std::vector<double>& numbers) {
  RankReport report;
  size_t at = 0;
  const auto whole = [&] { return static_cast<int64_t>(numbers.at(at++)); };
  for (Volume* volume : {&report.forward, &report.backward})
    for (Traffic kind : kTraffic) (*volume)[kind] = whole();
  report.seconds = numbers.at(at++);
  report.wait_seconds = numbers.at(at++);
  report.peak_bytes = whole();
  report.crossing_bytes = whole();
  report.processor_seconds = numbers.at(at++);
  while (at < numbers.size()) {
    const auto op = static_cast<Op>(whole());
    report.busy_seconds[op] = numbers.at(at++);
  }
  return report;
}

// Rank 0 gets everyone's piece of each tensor and puts it in its place; the others get nothing.
Answer join_answer(const Answer& mine, const Sample& sample, const Layout& queries, const Layout& keys, Group& group) {
  const at::NoGradGuard no_grad;
  const auto join_tensor = [&](const at::Tensor& own, const at::Tensor& like, const Layout& layout) {
    if (group.rank() != 0) {
      if (own.numel() > 0)
        group.channel().wait(group.channel().post({{Post::Way::send, own.contiguous(), 0, kAnswerTag}}));
      return at::Tensor();
    }
    at::Tensor whole = at::zeros_like(like);
    for (int rank = 0; rank < group.size(); ++rank) {
      const at::Tensor places = places_of(layout, rank);
      at::Tensor piece = own;
      if (rank > 0) {
        auto sizes = like.sizes().vec();
        sizes[2] = places.numel();
        piece = at::empty(sizes, like.options());
        if (piece.numel() > 0)
          group.channel().wait(group.channel().post({{Post::Way::receive, piece, rank, kAnswerTag}}));
      }
      whole.index_copy_(2, places, piece);
    }
    return whole;
  };
  Answer answer;
  answer.out = join_tensor(mine.out, sample.q, queries);
  answer.dq = join_tensor(mine.dq, sample.q, queries);
  answer.dk = join_tensor(mine.dk, sample.k, keys);
  answer.dv = join_tensor(mine.dv, sample.v, keys);
  return answer;
}

double scale_of(const Sample& sample, double scale) {
  return scale != 0 ? scale : 1 / std::sqrt(static_cast<double>(sample.q.size(3)));
}

}  // namespace

Sample make_sample(const TrialShape& shape, int64_t tokens, int64_t key_tokens) {
  at::Generator generator = at::globalContext().defaultGenerator(at::kCPU).clone();
  generator.set_current_seed(shape.seed);
  const auto draw = [&](int64_t heads, int64_t length, double gain) {
    return (at::randn({shape.batch, heads, length, shape.dim}, generator, at::kFloat) * gain).to(shape.type);
  };
  return {draw(shape.heads, tokens, shape.query_gain), draw(shape.key_heads, key_tokens, 1),
          draw(shape.key_heads, key_tokens, 1), draw(shape.heads, tokens, 1)};
}

Answer exact_answer(const Sample& sample, const Mask& mask, double scale) {
  const int64_t tokens = sample.q.size(2), key_tokens = sample.k.size(2);
  const int64_t key_heads = sample.k.size(1), group = sample.q.size(1) / key_heads;
  const Band band(mask, tokens, key_tokens);
  const auto wide = [](const at::Tensor& like) { return at::zeros(like.sizes(), at::kDouble); };
  Answer answer{wide(sample.q), wide(sample.q), wide(sample.k), wide(sample.v)};
  // Key heads are independent: one thread each and none inside, which beats threads that meet after every operation.
  std::atomic<int64_t> next{0};
  const auto work = [&] {
    at::set_num_threads(1);
    for (int64_t head; (head = next++) < key_heads;) {
      const auto queries = [&](const at::Tensor& t) { return t.narrow(1, head * group, group); };
      const auto keys = [&](const at::Tensor& t) { return t.narrow(1, head, 1); };
      const AttendInput input{queries(sample.q).to(at::kDouble),
                              keys(sample.k).to(at::kDouble),
                              keys(sample.v).to(at::kDouble),
                              {{0, tokens, 1}},
                              {{0, key_tokens, 1}},
                              &band,
                              scale_of(sample, scale)};
      Running running{queries(answer.out), at::full({sample.q.size(0), group, tokens},
                                                    -std::numeric_limits<double>::infinity(), at::kDouble)};
      reference_kernel().attend(input, running);
      const at::Tensor dout = queries(sample.dout).to(at::kDouble);
      Gradients gradients{queries(answer.dq), keys(answer.dk), keys(answer.dv)};
      reference_kernel().attend_backward({input, dout, running.lse, (dout * running.out).sum(-1)}, gradients);
    }
  };
  run_threads(at::get_num_threads(), [&](int) { work(); });
  return answer;
}

Answer pytorch_answer(const Sample& sample, const Mask& mask, double scale) {
  if (sample.q.scalar_type() == at::kDouble) return exact_answer(sample, mask, scale);
  Mask plain = mask;
  plain.causal = false;
  std::optional<at::Tensor> bias;  // only for what PyTorch has no name for
  if (!plain.full()) bias = written_mask(mask, sample.q.size(2));
  const bool causal = mask.causal && !bias;
  const double factor = scale_of(sample, scale);
  const auto [out, lse] =
      at::_scaled_dot_product_flash_attention_for_cpu(sample.q, sample.k, sample.v, 0, causal, bias, factor);
  const auto [dq, dk, dv] = at::_scaled_dot_product_flash_attention_for_cpu_backward(
      sample.dout, sample.q, sample.k, sample.v, out, lse, 0, causal, bias, factor);
  return {out, dq, dk, dv};
}

TrialRun run_trial(const Sample& sample, const AttentionOptions& options, World& world, int threads, bool traced) {
  const int ranks = options.grid.ranks();
  STARTRAIL_CHECK(ranks == world.size(), ranks, " ranks in the grid, ", world.size(), " in the world");
  const Layout queries = query_layout(options), keys = key_layout(options);
  TrialRun run;
  world.run(threads, [&](const std::shared_ptr<Group>& group) {
    const auto account = std::make_shared<MemoryAccount>();
    const MemoryScope scope(account);
    RankReport report;
    const at::Tensor query_tokens = places_of(queries, group->rank()), key_tokens = places_of(keys, group->rank());
    const auto leaf = [](const at::Tensor& t, const at::Tensor& tokens) {
      return t.index_select(2, tokens).requires_grad_();
    };
    const at::Tensor q = leaf(sample.q, query_tokens), k = leaf(sample.k, key_tokens), v = leaf(sample.v, key_tokens);
    const at::Tensor dout = sample.dout.index_select(2, query_tokens);
    const auto count = [&](Volume& sent) {
      const Counts& counts = group->meter().counts();
      sent = counts.sent();
      add_times(report, counts);
      for (const auto& [key, of] : counts.messages)
        if (world.nodes()[key.second] != world.nodes()[group->rank()]) report.crossing_bytes += of.sent_bytes;
      group->meter().reset();
    };

    const auto trace = traced ? std::make_shared<RankTrace>(group->rank()) : nullptr;
    // Milliseconds until all ranks have done it.
    const auto timed = [&](const char* name, Volume& sent, const std::function<void()>& body) {
      group->control().barrier();
      group->meter().reset();
      group->meter().record_to(trace);
      const double start_us = RankTrace::now_us();
      body();
      group->control().barrier();
      const double end_us = RankTrace::now_us();
      if (trace) trace->add({name, TraceKind::step, start_us, end_us});
      group->meter().record_to(nullptr);
      count(sent);
      report.seconds += (end_us - start_us) * 1e-6;
      return (end_us - start_us) / 1000;
    };
    const double processor_start = clock_seconds(CLOCK_PROCESS_CPUTIME_ID);
    at::Tensor out;
    const double forward_ms = timed("forward", report.forward, [&] { out = attention(q, k, v, options, group); });
    const double backward_ms = timed("backward", report.backward, [&] { out.backward(dout); });
    if (group->rank() == world.first())
      report.processor_seconds = clock_seconds(CLOCK_PROCESS_CPUTIME_ID) - processor_start;
    report.peak_bytes = account->peak_bytes;
    CollectedTraces traces;
    if (traced) traces = collect_traces(*group, trace.get());

    std::vector<RankReport> reports;
    for (const auto& numbers : group->control().gather(pack(report))) reports.push_back(unpack(numbers));
    Answer answer = join_answer({out, q.grad(), k.grad(), v.grad()}, sample, queries, keys, *group);
    if (group->rank() == world.first())
      run = {std::move(answer), forward_ms, backward_ms, std::move(reports), std::move(traces)};
  });
  return run;
}

TrialRun run_trial(const Sample& sample, const AttentionOptions& options, int threads) {
  return run_trial(sample, options, *local_world(options.grid.ranks()), threads);
}

Errors compare(const Answer& answer, const Answer& truth, const Sample& sample, double scale) {
  const double q = largest(sample.q), k = largest(sample.k), v = largest(sample.v), dout = largest(sample.dout);
  const double scores = v * dout * scale_of(sample, scale);
  return {relative_error(answer.out, truth.out, v), relative_error(answer.dq, truth.dq, scores * k),
          relative_error(answer.dk, truth.dk, scores * q), relative_error(answer.dv, truth.dv, dout)};
}

Errors tolerance(at::ScalarType type, const Errors& pytorch) {
  const auto limit = [&](double own) {
    if (type == at::kDouble) return 1e-12;
    if (!std::isfinite(own)) own = 0;
    return type == at::kBFloat16 ? std::max(2e-2, 1.3 * own) : std::max(3e-6, 2 * own);
  };
  return {limit(pytorch.out), limit(pytorch.dq), limit(pytorch.dk), limit(pytorch.dv)};
}

bool within(const Errors& errors, const Errors& limits) {
  return errors.out <= limits.out && errors.dq <= limits.dq && errors.dk <= limits.dk && errors.dv <= limits.dv;
}

}  // namespace startrail

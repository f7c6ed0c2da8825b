#include "tests/exactness.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <array>
#include <map>
#include <set>

#include "startrail/base/text.h"

namespace startrail {
namespace {

Sample in_type(const Sample& sample, at::ScalarType type) {
  return {sample.q.to(type), sample.k.to(type), sample.v.to(type), sample.dout.to(type)};
}

// Counts the pairs of settings that have met.
class Pairs {
 public:
  void add(const std::vector<std::string>& settings) {
    for (size_t i = 0; i < settings.size(); ++i) {
      values_[i].insert(settings[i]);
      for (size_t j = i + 1; j < settings.size(); ++j) met_[{i, j}].insert({settings[i], settings[j]});
    }
  }
  void expect_complete() const {
    for (const auto& [factors, met] : met_)
      EXPECT_EQ(met.size(), values_.at(factors.first).size() * values_.at(factors.second).size())
          << "factors " << factors.first << " and " << factors.second;
  }

 private:
  std::map<size_t, std::set<std::string>> values_;
  std::map<std::pair<size_t, size_t>, std::set<std::pair<std::string, std::string>>> met_;
};

}  // namespace

const std::vector<std::string>& mask_names() {
  static const std::vector<std::string> names{"full",          "causal",    "window",
                                              "causal window", "documents", "causal documents",
                                              "prefix",        "padding",   "causal window documents padding"};
  return names;
}

Mask make_mask(const std::string& name, int64_t tokens) {
  const auto has = [&](const char* word) { return name.find(word) != std::string::npos; };
  Mask mask;
  mask.causal = has("causal") || has("prefix") || name == "padding";
  if (has("window")) mask.window = tokens / 5 + 1;
  if (has("prefix")) mask.prefix = tokens / 3;
  if (has("padding")) mask.padding = tokens / 6;
  if (has("documents")) {
    const int64_t real = tokens - mask.padding, first = real / 3 + 1, second = 1 + real / 7;
    mask.documents = {first, second, real - first - second};
  }
  return mask;
}

std::string to_text(const Split& split) {
  return cat(to_text(split.grid), " ", to_text(split.order), " ",
             split.direction == Direction::keys ? "keys" : "queries", " ", split.type);
}

Proof::Proof(const WholeSequence& sequence) : sequence_(sequence) {
  sample_ = make_sample({.batch = 1,
                         .heads = sequence.heads,
                         .key_heads = sequence.key_heads,
                         .dim = sequence.dim,
                         .type = at::kBFloat16,
                         .seed = sequence.seed},
                        sequence.tokens, sequence.tokens);
  truth_ = exact_answer(sample_, sequence.mask, 0);
}

Errors Proof::pytorch_errors(at::ScalarType type) {
  for (const auto& [known, errors] : pytorch_errors_)
    if (known == type) return errors;
  const Sample sample = in_type(sample_, type);
  const Errors errors = compare(pytorch_answer(sample, sequence_.mask, 0), truth_, sample, 0);
  pytorch_errors_.push_back({type, errors});
  return errors;
}

std::string Proof::check(const Split& split) {
  AttentionOptions options;
  options.grid = split.grid;
  options.order = split.order;
  options.listed = split.listed;
  options.backward = split.direction;
  options.tokens = sequence_.tokens;
  options.mask = sequence_.mask;
  const Sample sample = in_type(sample_, split.type);
  const TrialRun run = run_trial(sample, options, 2);
  const Errors errors = compare(run.answer, truth_, sample, 0);
  Errors limits = tolerance(split.type, {});
  if (!within(errors, limits)) limits = tolerance(split.type, pytorch_errors(split.type));
  const std::string where = cat(to_text(split), ", ", sequence_.tokens, " tokens, ", sequence_.heads, "/",
                                sequence_.key_heads, " heads, ", to_text(sequence_.mask), ", seed ", sequence_.seed);
  if (!within(errors, limits))
    return cat(where, ": errors ", errors.out, " ", errors.dq, " ", errors.dk, " ", errors.dv, " allowed ", limits.out,
               " ", limits.dq, " ", limits.dk, " ", limits.dv);
  const int ranks = split.grid.ranks();
  const Problem problem = make_problem(options, 1, static_cast<int>(sequence_.heads),
                                       static_cast<int>(sequence_.key_heads), sequence_.dim, split.type);
  const Pass backward = split.direction == Direction::keys ? Pass::backward_keys : Pass::backward_queries;
  for (int rank = 0; rank < ranks; ++rank)
    if (run.ranks[rank].forward != formula_volume(split.grid, Pass::forward, rank, problem) ||
        run.ranks[rank].backward != formula_volume(split.grid, backward, rank, problem))
      return cat(where, ": rank ", rank, " sends other bytes than the formula");
  return "";
}

WholeSequence RandomCases::sequence(int64_t longest) {
  WholeSequence sequence;
  sequence.tokens = random_() % 8 == 0 ? longest : 1 + static_cast<int64_t>(random_() % 1500);
  if (sequence.tokens < 8) sequence.tokens += 8;
  sequence.mask = make_mask(pick(mask_names()), sequence.tokens);
  sequence.key_heads = pick(std::vector<int64_t>{1, 2, 4, 8});
  sequence.heads = sequence.key_heads * pick(std::vector<int64_t>{1, 2, 8});
  if (sequence.tokens > 2000) sequence.heads = std::min<int64_t>(sequence.heads, 2 * sequence.key_heads);
  sequence.dim = pick(std::vector<int64_t>{4, 8, 20});
  sequence.seed = random_() % 1000000;
  return sequence;
}

std::optional<Split> RandomCases::split(int ranks, const WholeSequence& sequence) {
  Split split{pick(every_grid(ranks)),
              pick(std::vector<Order>{Order::contiguous, Order::zigzag, Order::striped, Order::listed}),
              {},
              pick(std::vector<Direction>{Direction::keys, Direction::queries}),
              pick(std::vector<at::ScalarType>{at::kFloat, at::kBFloat16})};
  if (!heads_fit(split.grid.heads, sequence.heads, sequence.key_heads)) return std::nullopt;
  std::shuffle(split.grid.order.begin(), split.grid.order.end(), random_);
  if (split.order == Order::listed) split.listed = lists(ranks, sequence.tokens);
  return split;
}

// Short and long pieces, dealt out at random, so that some ranks may get nothing; and some of every second token.
PieceLists RandomCases::lists(int ranks, int64_t tokens) {
  auto all = std::make_shared<std::vector<Pieces>>(ranks);
  const auto any = [&]() -> Pieces& { return (*all)[random_() % all->size()]; };
  for (int64_t first = 0; first < tokens;) {
    const int64_t count = std::min<int64_t>(tokens - first, 1 + static_cast<int64_t>(random_() % (tokens / ranks + 1)));
    if (random_() % 4 == 0 && count > 3) {
      any().push_back({first, (count + 1) / 2, 2});
      any().push_back({first + 1, count / 2, 2});
    } else {
      any().push_back({first, count});
    }
    first += count;
  }
  return all;
}

void expect_every_pair(const std::vector<int64_t>& lengths) {
  constexpr std::array<Order, 3> orders = {Order::contiguous, Order::zigzag, Order::striped};
  constexpr std::array<int64_t, 3> ratios = {1, 2, 8};
  GridTurns grids(16);
  Pairs pairs;
  for (size_t m = 0; m < mask_names().size(); ++m)
    for (size_t n = 0; n < lengths.size(); ++n) {
      const int64_t ratio = ratios[(m + n) % 3];
      // Long sequences have fewer heads, or they would take most of the test's time.
      const bool is_long = lengths[n] > 2000;
      const int64_t heads = !is_long ? 16 : ratio == 8 ? 8 : 2, dim = is_long ? 4 : 8;
      Proof proof({.mask = make_mask(mask_names()[m], lengths[n]),
                   .tokens = lengths[n],
                   .heads = heads,
                   .key_heads = heads / ratio,
                   .dim = dim,
                   .seed = 100 * m + n});
      for (size_t s = 0; s < 3; ++s) {
        Split split{.grid = grids.next(heads, heads / ratio), .order = orders[s]};
        split.direction = (m + n + s) % 2 ? Direction::queries : Direction::keys;
        split.type = (m + n / 2 + s / 2) % 2 ? at::kBFloat16 : at::kFloat;
        EXPECT_EQ(proof.check(split), "");
        pairs.add({mask_names()[m], to_text(split.order), split.direction == Direction::keys ? "keys" : "queries",
                   cat(ratio), cat(lengths[n]), cat(split.type)});
      }
    }
  EXPECT_EQ(grids.used(), 35u);
  pairs.expect_complete();
}

}  // namespace startrail

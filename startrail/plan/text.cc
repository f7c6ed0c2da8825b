#include "startrail/plan/text.h"

#include <charconv>

#include "startrail/base/error.h"

namespace startrail {
namespace {

constexpr std::string_view kNone = "none";

std::string chunks_text(const std::vector<int>& chunks) {
  return chunks.empty() ? std::string(kNone) : join(chunks, ",");
}

// Reads words off one line.
class Words {
 public:
  Words(std::string_view line, int number) : number_(number) {
    for (std::string& word : split(line, ' '))
      if (!word.empty()) words_.push_back(std::move(word));
  }
  bool done() const { return at_ == words_.size(); }
  const std::string& peek() const {
    static const std::string nothing;
    return done() ? nothing : words_[at_];
  }
  std::string next(std::string_view expected) {
    if (done()) fail(expected);
    return words_[at_++];
  }
  void skip(std::string_view word) {
    if (peek() != word) fail(cat("'", word, "'"));
    ++at_;
  }
  int number(std::string_view expected) { return to_int(next(expected), expected); }
  int slice() { return to_int(next("a slice").substr(1), "a slice such as /0"); }
  std::vector<int> numbers(std::string_view expected) {
    std::vector<int> all;
    for (const std::string& part : split(next(expected), ',')) all.push_back(to_int(part, expected));
    return all;
  }
  std::vector<int> chunks() {
    if (peek() != kNone) return numbers("a list of chunks");
    ++at_;
    return {};
  }
  Member member() {
    constexpr std::string_view kExpected = "a rank and its chunks such as 0:0,1";
    const std::string word = next(kExpected);
    const size_t colon = word.find(':');
    Member member{to_int(word.substr(0, colon), kExpected), {}};
    const std::string rest = colon == std::string::npos ? "" : word.substr(colon + 1);
    if (rest == kNone) return member;
    if (rest.empty()) fail_before(kExpected);
    for (const std::string& part : split(rest, ',')) member.chunks.push_back(to_int(part, kExpected));
    return member;
  }
  template <class Values>
  auto one_of(const Values& values, std::string_view expected) {
    for (auto value : values)
      if (peek() == to_text(value)) {
        ++at_;
        return value;
      }
    std::vector<std::string> names;
    for (auto value : values) names.push_back(to_text(value));
    fail(cat(expected, " (", join(names), ")"));
  }
  [[noreturn]] void fail(std::string_view expected) const {
    throw UserError(cat("plan text, line ", number_, ": ", done() ? "the line ends" : cat("'", peek(), "'"), " where ",
                        expected, " is expected"));
  }

 private:
  int to_int(const std::string& text, std::string_view expected) {
    int value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc() || end != text.data() + text.size()) fail_before(expected);
    return value;
  }
  [[noreturn]] void fail_before(std::string_view expected) {
    --at_;
    fail(expected);
  }
  std::vector<std::string> words_;
  size_t at_ = 0;
  int number_;
};

Block read_block(Words& words) {
  Block block;
  block.data = words.one_of(kData, "a kind of data");
  block.chunks = words.chunks();
  if (words.peek().starts_with('/')) block.slice = words.slice();
  return block;
}

Step read_step(Words& words) {
  Step step;
  step.op = words.one_of(kOps, "a step");
  if (step.op == Op::exchange) {
    // Either half may be absent: "exchange keys 0 to 1" or "exchange keys 3 from 3".
    Block block = read_block(words);
    if (words.peek() == "to") {
      words.skip("to");
      step.in = std::move(block);
      step.to = words.number("a rank");
      if (words.done()) return step;
      words.skip("and");
      block = read_block(words);
    }
    words.skip("from");
    step.out = std::move(block);
    step.from = words.number("a rank");
    return step;
  }
  step.in = read_block(words);
  if (step.op == Op::attend || step.op == Op::delta) {
    words.skip(step.op == Op::attend ? "x" : "with");
    step.with = read_block(words);
  }
  if (step.op == Op::attend) return step;
  words.skip("->");
  step.out = read_block(words);
  if (step.op == Op::delta) return step;
  words.skip("over");
  do step.group.push_back(words.member());
  while (!words.done());
  return step;
}

}  // namespace

std::string to_text(Pass pass) {
  switch (pass) {
    case Pass::forward:
      return "forward";
    case Pass::backward_keys:
      return "backward_keys";
    case Pass::backward_queries:
      return "backward_queries";
  }
  throw InternalError("unknown pass");
}

std::string to_text(Data data) {
  switch (data) {
    case Data::query:
      return "query";
    case Data::keys:
      return "keys";
    case Data::saved:
      return "saved";
    case Data::out:
      return "out";
    case Data::out_grad:
      return "out_grad";
    case Data::query_grad:
      return "query_grad";
    case Data::keys_grad:
      return "keys_grad";
  }
  throw InternalError("unknown data");
}

std::string to_text(Op op) {
  switch (op) {
    case Op::all_to_all:
      return "all_to_all";
    case Op::gather:
      return "gather";
    case Op::delta:
      return "delta";
    case Op::exchange:
      return "exchange";
    case Op::attend:
      return "attend";
    case Op::merge:
      return "merge";
  }
  throw InternalError("unknown op");
}

std::string to_text(const Block& block) {
  return cat(to_text(block.data), " ", chunks_text(block.chunks),
             block.slice == kAllHeads ? "" : cat(" /", block.slice));
}

std::string to_text(const Step& step) {
  const std::string op = to_text(step.op) + " ";
  switch (step.op) {
    case Op::attend:
      return op + to_text(step.in) + " x " + to_text(step.with);
    case Op::delta:
      return op + to_text(step.in) + " with " + to_text(step.with) + " -> " + to_text(step.out);
    case Op::exchange:
      return cat(op, sends(step) ? cat(to_text(step.in), " to ", step.to) : "",
                 sends(step) && receives(step) ? " and " : "",
                 receives(step) ? cat(to_text(step.out), " from ", step.from) : "");
    default: {
      std::vector<std::string> members;
      for (const Member& member : step.group) members.push_back(cat(member.rank, ":", chunks_text(member.chunks)));
      return cat(op, to_text(step.in), " -> ", to_text(step.out), " over ", join(members, " "));
    }
  }
}

std::string to_text(const Plan& plan) {
  const bool usual = plan.owners == own_chunk_each(static_cast<int>(plan.ranks.size()));
  std::string text = cat("plan ", to_text(plan.pass), " ranks ", plan.ranks.size(), " slices ", plan.slices,
                         usual ? "" : cat(" owners ", chunks_text(plan.owners)), "\n");
  for (size_t rank = 0; rank < plan.ranks.size(); ++rank) {
    text += cat("rank ", rank, "\n");
    for (const Step& step : plan.ranks[rank]) text += cat("  ", to_text(step), "\n");
  }
  return text;
}

Plan plan_from_text(std::string_view text) {
  Plan plan;
  bool started = false, owners = false;
  int ranks = 0, number = 0;
  for (const std::string& line : split(text, '\n')) {
    Words words(line, ++number);
    if (words.done()) continue;
    if (!started) {
      words.skip("plan");
      plan.pass = words.one_of(kPasses, "a pass");
      words.skip("ranks");
      ranks = words.number("a number of ranks");
      words.skip("slices");
      plan.slices = words.number("a number of slices");
      if ((owners = words.peek() == "owners")) {
        words.skip("owners");
        plan.owners = words.chunks();
      }
      started = true;
    } else if (words.peek() == "rank") {
      words.skip("rank");
      if (static_cast<int>(plan.ranks.size()) >= ranks) words.fail(cat("the end of a plan of ", ranks, " ranks"));
      if (words.peek() != cat(plan.ranks.size())) words.fail(cat("rank ", plan.ranks.size(), " of ", ranks));
      words.next("a rank");
      plan.ranks.emplace_back();
    } else {
      if (plan.ranks.empty()) words.fail("'rank 0'");
      plan.ranks.back().push_back(read_step(words));
    }
    if (!words.done()) words.fail("the end of the line");
  }
  if (!started) throw UserError("plan text is empty where 'plan <pass> ranks <number> slices <number>' is expected");
  if (static_cast<int>(plan.ranks.size()) != ranks)
    throw UserError(cat("plan text ends after ", plan.ranks.size(), " of ", ranks, " ranks"));
  if (!owners) plan.owners = own_chunk_each(ranks);
  return plan;
}

}  // namespace startrail

#include "python/operators/kept.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <functional>
#include <limits>
#include <torch/csrc/distributed/c10d/GroupRegistry.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "startrail/base/error.h"
#include "startrail/base/system.h"
#include "startrail/plan/choose.h"
#include "startrail/run/comm/reason.h"

namespace startrail {
namespace {

// Kinds of calls that are kept for a group. All ranks make the same calls, so all of them forget the same.
constexpr size_t kMostCalls = 64;

void append(std::string& key, int64_t value) { key.append(reinterpret_cast<const char*>(&value), sizeof value); }
void append(std::string& key, const std::string& text) {
  append(key, static_cast<int64_t>(text.size()));
  key += text;
}
void append(std::string& key, const std::vector<int64_t>& values) {
  append(key, static_cast<int64_t>(values.size()));
  key.append(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(int64_t));
}

// The same on all ranks, and different for different calls.
std::string key_of(const CallOptions& call, const AttentionShape& shape) {
  std::string key;
  for (int64_t value :
       {shape.batch, int64_t{shape.heads}, int64_t{shape.key_heads}, shape.dim, static_cast<int64_t>(shape.type),
        static_cast<int64_t>(shape.device.type()), call.tokens, call.key_tokens, int64_t{call.mask.causal},
        call.mask.window, call.mask.prefix, call.mask.padding})
    append(key, value);
  key.append(reinterpret_cast<const char*>(&call.scale), sizeof call.scale);
  for (const std::string* text : {&call.grid, &call.layout, &call.backward, &call.kernel}) append(key, *text);
  for (const auto* values : {&call.pieces, &call.key_pieces, &call.mask.documents}) append(key, *values);
  return key;
}

std::string what_of(const CallOptions& call, const AttentionShape& shape) {
  return cat("attention of ", call.tokens, " tokens", call.key_tokens > 0 ? cat(" to ", call.key_tokens) : "", ", ",
             shape.heads, " heads (", shape.key_heads, " key/value) of ", shape.dim, ", batch ", shape.batch, ", ",
             shape.type, ", grid ", call.grid, ", ", call.layout, ", mask ", to_text(call.mask));
}

// A host that all ranks reach: that of their store.
std::string master_of(c10d::ProcessGroup& processes) {
  c10::intrusive_ptr<c10d::Store> store = processes.getStore();
  if (auto* prefix = dynamic_cast<c10d::PrefixStore*>(store.get())) store = prefix->getUnderlyingNonPrefixStore();
  if (auto* tcp = dynamic_cast<c10d::TCPStore*>(store.get())) return tcp->getHost();
  if (const char* address = std::getenv("MASTER_ADDR")) return address;
  return host_name();
}

PieceLists listed_pieces(const std::vector<int64_t>& numbers) {
  auto lists = std::make_shared<std::vector<Pieces>>();
  size_t at = 0;
  const auto next = [&] {
    if (at >= numbers.size()) throw UserError(cat("layout listed ends before rank ", lists->size(), "'s pieces do"));
    return numbers[at++];
  };
  while (at < numbers.size()) {
    const int64_t count = next();
    Pieces pieces;
    for (int64_t i = 0; i < count; ++i) {
      const int64_t first = next(), length = next(), stride = next();
      pieces.push_back({first, length, stride});
    }
    lists->push_back(std::move(pieces));
  }
  return lists;
}

}  // namespace

Grid grid_of(const std::string& text, const AttentionShape& shape, int ranks) {
  if (text != "auto") return parse_grid(text, ranks);
  const Layout even{Order::contiguous, int64_t{64} * ranks, ranks};
  const int bytes = static_cast<int>(c10::elementSize(shape.type));
  const Problem problem = make_problem(
      {shape.batch, shape.heads, shape.key_heads, shape.dim, bytes, std::max<int>(bytes, sizeof(float))}, even, even);
  return choose_grid(problem, {}).grid;
}

Layout layout_of(const std::string& text, int64_t tokens, const std::vector<int64_t>& pieces, int ranks) {
  Layout layout{Order::listed, tokens, ranks};
  if (text == "lengths") {
    layout.listed = list_lengths(pieces);
  } else if (text == "listed") {
    layout.listed = listed_pieces(pieces);
  } else {
    if (!pieces.empty()) throw UserError(cat("layout ", text, " takes no pieces; listed and lengths do"));
    layout.order = parse_order(text);
  }
  check_layout(layout);
  return layout;
}

AttentionOptions attention_options(const CallOptions& call, const AttentionShape& shape, int ranks) {
  AttentionOptions options;
  options.grid = grid_of(call.grid, shape, ranks);
  const Layout queries = layout_of(call.layout, call.tokens, call.pieces, ranks);
  options.order = queries.order;
  options.listed = queries.listed;
  options.tokens = call.tokens;
  options.key_tokens = call.key_tokens;
  if (call.key_tokens == 0 && !call.key_pieces.empty())
    throw UserError("key_pieces and key_lengths say how key_tokens are cut: give key_tokens too");
  if (!call.key_pieces.empty())
    options.key_listed = layout_of(call.layout, call.key_tokens, call.key_pieces, ranks).listed;
  options.mask = call.mask;
  if (!std::isfinite(call.scale) || call.scale < 0)
    throw UserError(
        cat("scale ", call.scale, " is no factor of scores: give a positive number, or 0 for 1 / sqrt(dim)"));
  options.scale = call.scale;
  options.backward = parse_direction(call.backward);
  options.kernel = call.kernel;
  return options;
}

KeptGroup::KeptGroup(c10::intrusive_ptr<c10d::Backend> backend, const std::string& master,
                     std::chrono::milliseconds timeout)
    : adopted_(std::move(backend), master, timeout) {}

std::shared_ptr<const KeptCall> KeptGroup::find(const CallOptions& call, const at::Tensor& q, const at::Tensor& k,
                                                const at::Tensor& v) {
  std::string key, what = "a call that it refuses", refusal;
  std::shared_ptr<const PreparedAttention> prepared;
  std::lock_guard lock(mutex_);
  try {
    const AttentionShape shape = shape_of(q, k, v);
    key = key_of(call, shape);
    what = what_of(call, shape);
    if (const auto found = calls_.find(key); found != calls_.end()) {
      found->second.used = ++uses_;
      return found->second.call;
    }
    auto fresh = std::make_shared<PreparedAttention>(attention_options(call, shape, group().size()), shape,
                                                     group().rank(), group().size());
    using Use = PreparedAttention::Use;
    for (Use use : {Use::forward, Use::backward}) fresh->how(use);
    fresh->check(q, k, v);
    prepared = std::move(fresh);
  } catch (const std::exception& error) {
    refusal = reason_of(error);
  }
  auto agreed = agree(key, what, refusal, std::move(prepared));
  if (calls_.size() >= kMostCalls)
    calls_.erase(std::ranges::min_element(calls_, {}, [](const auto& one) { return one.second.used; }));
  calls_[key] = {agreed, ++uses_};
  return agreed;
}

bool KeptGroup::count_batch() {
  std::lock_guard lock(mutex_);
  return ++batches_ == 3 && uses_ == 0;
}

std::vector<int64_t> KeptGroup::lengths(int64_t queries, int64_t keys) {
  const AdoptedGroup::Call asking(adopted_, std::make_shared<std::string>("asking for everyone's lengths"), 0);
  std::vector<int64_t> all;
  const auto told = group().control().gather(std::vector<int64_t>{queries, keys});
  for (size_t side : {0, 1})
    for (const auto& one : told) all.push_back(one.at(side));
  return all;
}

std::shared_ptr<const KeptCall> KeptGroup::agree(const std::string& key, const std::string& what,
                                                 const std::string& refusal,
                                                 std::shared_ptr<const PreparedAttention> prepared,
                                                 const std::string& advice) {
  const auto kept = std::make_shared<KeptCall>(
      KeptCall{std::move(prepared), std::make_shared<std::string>(what), std::hash<std::string>{}(key)});
  if (group().size() == 1) {
    if (!refusal.empty()) throw UserError(refusal);
    return kept;
  }
  const auto asked = std::make_shared<std::string>("asking the others about " + *kept->what);
  const AdoptedGroup::Call asking(adopted_, asked, 0);
  const auto all = group().control().gather(cat(kept->hash, "\n", *kept->what, "\n", refusal));
  const auto part = [&](int rank, int index) {
    const std::string& text = all[static_cast<size_t>(rank)];
    const size_t first = text.find('\n'), second = text.find('\n', first + 1);
    if (index == 0) return text.substr(0, first);
    return index == 1 ? text.substr(first + 1, second - first - 1) : text.substr(second + 1);
  };
  std::vector<int> refused, differ;
  for (int rank = 0; rank < group().size(); ++rank) {
    if (!part(rank, 2).empty()) refused.push_back(rank);
    if (part(rank, 0) != part(0, 0)) differ.push_back(rank);
  }
  if (static_cast<int>(refused.size()) == group().size() && differ.empty()) throw UserError(part(0, 2));
  if (!refused.empty()) throw UserError(cat(numbered("rank", refused), ": ", part(refused[0], 2)));
  if (!differ.empty())
    throw UserError(cat("the ranks do not make the same call: rank ", differ[0], " makes ", part(differ[0], 1),
                        ", and rank 0 ", part(0, 1), advice));
  return kept;
}

namespace {

// Never destroyed: at the end of a process other libraries are gone first. forget_groups() is for that.
struct Registry {
  struct One {
    c10::weak_intrusive_ptr<c10d::ProcessGroup> owner;
    std::shared_ptr<KeptGroup> kept;
  };
  std::mutex mutex;
  std::map<std::pair<std::string, c10::DeviceType>, One> groups;
};
Registry& registry() {
  static auto* const all = new Registry;
  return *all;
}

}  // namespace

std::shared_ptr<KeptGroup> known_group(const std::string& name, at::Device device) {
  const auto processes = c10d::resolve_process_group(name);
  Registry& all = registry();
  std::lock_guard lock(all.mutex);
  // A name returns after destroy_process_group, with another group behind it.
  std::erase_if(all.groups, [](const auto& one) { return one.second.owner.expired(); });
  const auto found = all.groups.find({name, device.type()});
  const bool known = found != all.groups.end() && found->second.owner.lock().get() == processes.get();
  return known ? found->second.kept : nullptr;
}

std::shared_ptr<KeptGroup> kept_group(const std::string& name, at::Device device) {
  if (auto known = known_group(name, device)) return known;
  const auto processes = c10d::resolve_process_group(name);
  const auto backend = processes->getBackend(device.type());
  if (backend->getBackendName() != "gloo")
    throw UserError(
        cat("the process group's backend for ", device.str(), " is ", backend->getBackendName(), "; valid: gloo"));
  auto kept = std::make_shared<KeptGroup>(backend, master_of(*processes), backend->getBackendOptions()->timeout);
  Registry& all = registry();
  std::lock_guard lock(all.mutex);
  all.groups.insert_or_assign({name, device.type()},
                              Registry::One{c10::weak_intrusive_ptr<c10d::ProcessGroup>(processes), kept});
  return kept;
}

void forget_groups() {
  decltype(Registry::groups) gone;
  std::lock_guard lock(registry().mutex);
  gone.swap(registry().groups);
}

}  // namespace startrail

#include "startrail/run/hosts/adopted.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <random>

#include "startrail/base/error.h"
#include "startrail/run/comm/reason.h"
#include "startrail/run/hosts/meeting.h"

namespace startrail {
namespace {

using nlohmann::json;
using std::chrono::steady_clock;

std::string random_word() {
  std::random_device random;
  std::string word;
  for (int i = 0; i < 8; ++i) word += cat(random());
  return word.substr(0, 60);
}

}  // namespace

AdoptedGroup::AdoptedGroup(c10::intrusive_ptr<c10d::Backend> backend, const std::string& master,
                           std::chrono::milliseconds timeout)
    : gloo_(backend, [this](int peer, const std::string& why) {
        return watch_ ? watch_->lost(peer, why) : cat("rank ", peer, " did not come to its first call: ", why);
      }) {
  if (backend->getSize() > 1) {
    gloo_.set_limit(timeout);
    meet(master, timeout);
    gloo_.set_limit(std::chrono::milliseconds::max());
  }
  group_ = std::make_unique<Group>(gloo_.backend(), slots_);
  group_->meter().count_busy(false);
}

AdoptedGroup::~AdoptedGroup() { watch_.reset(); }

// Over Gloo itself, as all ranks are connected: where they are, where rank 0 listens for the watch, and the memory in
// which those of one host take turns.
void AdoptedGroup::meet(const std::string& master, std::chrono::milliseconds timeout) {
  Group all(gloo_.backend());
  const int rank = all.rank(), size = all.size();
  const auto until = steady_clock::now() + timeout;
  ProcessInfo own = make_info({.rank = rank, .size = size, .launcher = {}, .address = master, .port = 9});
  Socket socket = rank == 0 ? listen_on(own.address, 0) : Socket();
  const std::string word = rank == 0 ? random_word() : "";
  const std::string mine = json{
      {"node", own.node},
      {"boot", own.boot},
      {"cores", own.cores},
      {"address", own.address},
      {"port", rank == 0 ? port_of(socket) : 0},
      {"word", word}}.dump(-1, ' ', false, json::error_handler_t::replace);
  std::vector<json> ranks;
  for (const std::string& text : all.control().gather(mine)) ranks.push_back(json::parse(text));
  if (rank > 0) socket = connect_to(ranks[0]["address"], ranks[0]["port"], until);

  WatchOptions options;
  options.rank = rank;
  options.size = size;
  for (const json& one : ranks) options.nodes.push_back(one["node"]);
  options.secret = ranks[0]["word"];
  options.timeout = timeout;
  options.ask = [this] { return doing(); };
  options.on_verdict = [this](const std::string& verdict) {
    gloo_.abort(verdict);
    if (slots_) slots_->abort(verdict);
  };

  // Ranks that have the same cores take turns at computing.
  std::vector<int> here;
  for (int r = 0; r < size; ++r)
    if (ranks[r]["boot"] == own.boot) here.push_back(r);
  const bool shared =
      here.size() > 1 && std::ranges::all_of(here, [&](int r) { return ranks[r]["cores"] == own.cores; });
  const int slots = static_cast<int>(own.cores.size());
  const bool makes = shared && here[0] == rank && static_cast<int>(here.size()) > slots;
  if (makes) page_ = std::make_unique<SharedPage>(options.secret, slots, 0);
  const auto places = all.control().gather(page_ ? page_->place() : std::string());
  if (!makes && shared && !places[here[0]].empty()) page_ = SharedPage::open(places[here[0]], options.secret);
  if (page_) slots_ = std::make_shared<ComputeSlots>(page_->turns(), slots);
  all.control().barrier();
  if (page_) page_->close_place();
  watch_ = std::make_unique<Watch>(std::move(options), std::move(socket), until);
}

Doing AdoptedGroup::doing() const {
  std::lock_guard lock(mutex_);
  return {what_ ? cat("call ", number_, ", ", *what_) : "", what_ ? gloo_.waited() : std::chrono::milliseconds(0)};
}

AdoptedGroup::Call::Call(AdoptedGroup& adopted, std::shared_ptr<const std::string> what, size_t key)
    : adopted_(adopted), turn_(adopted.turn_) {
  const int64_t number = ++adopted.calls_;
  // The topmost bit keeps away from the caller's own messages; sixteen of the key, four of the number.
  adopted.group().channel().set_mark(1 << 20 | static_cast<int>((key & 0xffff) << 4) | static_cast<int>(number & 15));
  std::lock_guard lock(adopted.mutex_);
  adopted.what_ = std::move(what);
  adopted.number_ = number;
}

AdoptedGroup::Call::~Call() {
  std::lock_guard lock(adopted_.mutex_);
  adopted_.what_ = nullptr;
}

void AdoptedGroup::fail(const std::string& why) {
  if (watch_) watch_->fail(why);
}

}  // namespace startrail

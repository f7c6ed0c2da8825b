#include "startrail/run/hosts/meeting.h"

#include <sched.h>
#include <sys/random.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <thread>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>
#include <utility>

#include "startrail/base/error.h"
#include "startrail/base/system.h"
#include "startrail/run/comm/reason.h"

namespace startrail {
namespace {

using nlohmann::json;
using std::chrono::milliseconds;
using std::chrono::steady_clock;
using StorePtr = c10::intrusive_ptr<c10d::Store>;
using Time = steady_clock::time_point;

constexpr milliseconds kLook{10};  // how often rank 0 looks for those who come

std::string random_word() {
  uint64_t bits[2];
  if (getrandom(bits, sizeof bits, 0) != sizeof bits) throw ClusterError("the system gives no random numbers");
  return hex_text(bits[0]) + hex_text(bits[1]);
}

milliseconds left_until(Time until) {
  return std::max(milliseconds(1), std::chrono::duration_cast<milliseconds>(until - steady_clock::now()));
}

StorePtr open_store(const Launched& launched, Time until) {
  c10d::TCPStoreOptions options;
  options.port = static_cast<uint16_t>(launched.port);
  options.isServer = launched.rank == 0 && !launched.served;
  options.waitWorkers = false;
  options.timeout = left_until(until);
  if (options.isServer) options.masterListenFd = listen_on(launched.address, launched.port).release();
  try {
    return c10::make_intrusive<c10d::TCPStore>(launched.address, options);
  } catch (const std::exception& error) {
    throw ClusterError(cat("nobody answers at ", launched.address, ":", launched.port, ", where the ranks meet (",
                           launched.launcher, "): ", reason_of(error)));
  }
}

json to_json(const ProcessInfo& one) {
  return {{"node", one.node}, {"boot", one.boot}, {"cores", one.cores}, {"address", one.address}, {"disk", one.disk}};
}

// Names of hosts need not be UTF-8.
std::string to_text(const json& value) { return value.dump(-1, ' ', false, json::error_handler_t::replace); }

ProcessInfo read_info(const json& from) {
  return {from.at("node"), from.at("boot"), from.at("cores"), from.at("address"), from.at("disk")};
}

constexpr const char* kBegan = "startrail/began";

std::string join_key(int rank) { return cat("startrail/join/", rank); }

// A launcher that starts a job again keeps its store, with what the ranks of the last time wrote, and hosts need not
// count the starts alike. So each process writes a fresh word, and rank 0 answers every word it sees with its own:
// whoever is answered, and says so under that word, is of rank 0's start.
class Host {
 public:
  Host(StorePtr store, const Launched& launched, Time until)
      : store_(std::move(store)), launched_(launched), until_(until) {}

  // What each rank said, by rank; rank 0's is `mine`.
  std::vector<json> gather(const std::string& word, json mine) {
    std::vector<json> said(launched_.size);
    said[0] = std::move(mine);
    std::vector<std::string> answered(launched_.size);
    std::set<int> missing;
    for (int rank = 1; rank < launched_.size; ++rank) missing.insert(rank);
    while (!missing.empty()) {
      for (auto rank = missing.begin(); rank != missing.end();) {
        if (!store_->check({join_key(*rank)})) {
          ++rank;
          continue;
        }
        const std::string text = store_->get_to_str(join_key(*rank));
        const json join = json::parse(text);
        if (join.at("job") != launched_.job) {  // a stranger's, at the same place
          ++rank;
          continue;
        }
        if (const std::string theirs = join.at("word"); answered[*rank] != theirs) {
          put(*store_, cat("startrail/answer/", theirs), word);
          answered[*rank] = theirs;
        }
        if (!store_->check({cat("startrail/", word, "/here/", *rank)})) {
          ++rank;
          continue;
        }
        said[*rank] = join;
        rank = missing.erase(rank);
      }
      if (missing.empty()) break;
      if (steady_clock::now() > until_)
        throw ClusterError(
            cat(numbered("rank", missing), " of ", launched_.size, " did not come to ", launched_.address, ":",
                launched_.port, " in time",
                is_loopback(address_towards(launched_.address, launched_.port))
                    ? cat(", which only this host reaches: set MASTER_ADDR to its number in the network ",
                          "that the hosts share")
                    : ""));
      std::this_thread::sleep_for(kLook);
    }
    return said;
  }

 private:
  StorePtr store_;
  const Launched& launched_;
  Time until_;
};

std::string check_sizes(const std::vector<json>& said) {
  for (size_t rank = 0; rank < said.size(); ++rank)
    if (said[rank].at("size") != said.size())
      return cat("rank ", rank, " (", said[rank].at("node").get<std::string>(), ") is one of ",
                 said[rank].at("size").get<int>(), " ranks and rank 0 of ", said.size(), ": start all as one job");
  return "";
}

std::string check_versions(const std::vector<json>& said) {
  std::vector<int> others;
  for (size_t rank = 0; rank < said.size(); ++rank)
    if (said[rank].at("version") != said[0].at("version")) others.push_back(static_cast<int>(rank));
  if (others.empty()) return "";
  return cat(
      "rank ", others[0], " (", said[others[0]].at("node").get<std::string>(), ") is of version ",
      said[others[0]].at("version").get<std::string>(), " and rank 0 of ", said[0].at("version").get<std::string>(),
      others.size() > 1 ? cat("; so are ", others.size() - 1, " more") : "", ": build the same one on every host");
}

// One that others cannot reach: a host's own name often means its loopback there, and its real address elsewhere.
std::string check_addresses(const std::vector<json>& said, const Launched& launched) {
  const auto loops = [](const json& one) { return is_loopback(one.at("address")); };
  const auto inside = std::find_if(said.begin(), said.end(), loops);
  if (inside == said.end() || std::all_of(said.begin(), said.end(), loops)) return "";
  return cat("on ", inside->at("node").get<std::string>(), " the address ", launched.address, " means ",
             inside->at("address").get<std::string>(), ", where other hosts cannot come: set MASTER_ADDR to the ",
             "number of rank 0's host in the network that the hosts share");
}

}  // namespace

ProcessInfo make_info(const Launched& launched) {
  ProcessInfo one{process_environment("STARTRAIL_NODE"), "", {}, address_towards(launched.address, launched.port), ""};
  if (one.node.empty()) one.node = host_name();
  std::ifstream("/proc/sys/kernel/random/boot_id") >> one.boot;
  std::error_code none;
  one.disk = cat(one.boot, " ", one.address, " ", std::filesystem::read_symlink("/proc/self/ns/mnt", none).string());
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof set, &set) == 0)
    for (int core = 0; core < CPU_SETSIZE; ++core)
      if (CPU_ISSET(core, &set)) one.cores.push_back(core);
  return one;
}

void begin(c10d::Store& store) { store.set(kBegan, std::string("1")); }

// In pieces, since a store takes only so much at once; their number comes last, under the key itself.
void put(c10d::Store& store, const std::string& key, const std::string& text) {
  constexpr size_t kPiece = 1 << 20;
  size_t count = 0;
  for (size_t at = 0; at < text.size(); at += kPiece) store.set(cat(key, "/", count++), text.substr(at, kPiece));
  store.set(key, cat(count));
}

std::string wait_for_key(c10d::Store& store, const std::string& key, const std::function<void()>& check) {
  try {
    for (;;) {
      try {
        store.wait({key}, milliseconds(500));
        break;
      } catch (const c10::DistNetworkError&) {
        throw;
      } catch (const std::exception&) {  // not yet
        check();
      }
    }
    std::string text;
    const int64_t count = parse_int(store.get_to_str(key), key);
    for (int64_t i = 0; i < count; ++i) text += store.get_to_str(cat(key, "/", i));
    return text;
  } catch (const c10::DistNetworkError& error) {
    check();
    throw ClusterError(cat("the place where the ranks meet is gone, with rank 0 or the launcher: ", reason_of(error)));
  }
}

Meeting meet(const Launched& launched, const std::string& version, Time until) {
  const ProcessInfo own = make_info(launched);
  const StorePtr store = open_store(launched, until);
  const std::string word = random_word();
  json join = to_json(own);
  join.update({{"word", word}, {"version", version}, {"job", launched.job}, {"size", launched.size}});
  const auto in_time = [&] {
    if (steady_clock::now() > until)
      throw ClusterError(cat("rank 0 did not come to ", launched.address, ":", launched.port, " in time"));
  };
  Meeting meeting;
  std::string roster;
  if (launched.rank == 0) {
    Host host(store, launched, until);
    const std::vector<json> said = host.gather(word, join);
    std::string error = check_sizes(said);
    if (error.empty()) error = check_versions(said);
    if (error.empty()) error = check_addresses(said, launched);
    meeting.watch = listen_on(own.address, 0);
    const json all{
        {"said", said}, {"error", error}, {"restarted", store->check({kBegan})}, {"port", port_of(meeting.watch)}};
    roster = to_text(all);
    put(*store, cat("startrail/", word, "/roster"), roster);
    meeting.word = word;
  } else {
    store->set(join_key(launched.rank), to_text(join));
    meeting.word = wait_for_key(*store, cat("startrail/answer/", word), in_time);
    store->set(cat("startrail/", meeting.word, "/here/", launched.rank), std::string("1"));
    roster = wait_for_key(*store, cat("startrail/", meeting.word, "/roster"), in_time);
  }
  const json all = json::parse(roster);
  if (const std::string error = all.at("error"); !error.empty()) throw UserError(error);
  for (const json& one : all.at("said")) meeting.processes.push_back(read_info(one));
  meeting.restarted = all.at("restarted");
  meeting.whole = store;
  meeting.store = c10::make_intrusive<c10d::PrefixStore>(cat("startrail/", meeting.word), store);
  if (launched.rank != 0) meeting.watch = connect_to(meeting.processes[0].address, all.at("port"), until);
  return meeting;
}

}  // namespace startrail

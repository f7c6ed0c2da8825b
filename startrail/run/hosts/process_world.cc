#include "startrail/run/hosts/process_world.h"

#include <ATen/Parallel.h>
#include <algorithm>
#include <cmath>
#include <condition_variable>
#include <csignal>
#include <exception>
#include <mutex>
#include <nlohmann/json.hpp>
#include <thread>

#include "startrail/base/error.h"
#include "startrail/run/comm/local.h"
#include "startrail/run/comm/reason.h"
#include "startrail/run/hosts/gloo.h"
#include "startrail/run/hosts/meeting.h"
#include "startrail/run/hosts/shared_page.h"
#include "startrail/run/hosts/watch.h"

namespace startrail {
namespace {

using nlohmann::json;
using std::chrono::steady_clock;

// Calls `late` unless it is gone by then: for calls of the store, which nothing else can end.
class Deadline {
 public:
  Deadline(steady_clock::time_point until, std::function<void()> late)
      : thread_([this, until, late = std::move(late)] {
          std::unique_lock lock(mutex_);
          if (!changed_.wait_until(lock, until, [&] { return done_; })) late();
        }) {}
  ~Deadline() {
    {
      std::lock_guard lock(mutex_);
      done_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool done_ = false;
  std::thread thread_;
};

// In what the ranks' facts are not rank 0's.
class Differences {
 public:
  void add(const std::map<std::string, std::string>& facts, const json& theirs, int rank,
           const std::vector<std::string>& nodes) {
    const auto note = [&](const std::string& name, const std::string& here, const std::string& there) {
      if (here == there) return;
      names_.insert(name);
      ranks_.insert(rank);
      if (example_.empty())
        example_ = cat(name, " is ", there, " at rank ", rank, " (", nodes[rank], ") and ", here, " at rank 0 (",
                       nodes[0], ")");
    };
    for (const auto& [name, value] : facts) note(name, value, theirs.value(name, "nothing"));
    for (const auto& [name, value] : theirs.items())
      if (!facts.contains(name)) note(name, "nothing", value.get<std::string>());
  }

  std::string text() const {
    if (ranks_.empty()) return "";
    return cat(numbered("rank", ranks_), ranks_.size() == 1 ? " differs" : " differ", " from rank 0 in ", join(names_),
               ": ", example_, "; give every rank the same");
  }

 private:
  std::set<int> ranks_;
  std::set<std::string> names_;
  std::string example_;
};

bool is_user_error(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const UserError&) {
    return true;
  } catch (...) {
    return false;
  }
}

class Processes : public ProcessWorld {
 public:
  Processes(const Launched& launched, const ProcessOptions& options) : launched_(launched), options_(options) {
    if (size() == 1 && !launched.served) {  // nobody to meet
      meeting_.processes = {make_info({.rank = 0, .size = 1, .launcher = {}, .address = "127.0.0.1"})};
      nodes_ = {own().node};
      start_watch(steady_clock::now());
      connect(steady_clock::now());
      return;
    }
    raise_file_limit();
    signal(SIGPIPE, SIG_IGN);  // Gloo writes to a rank that died: what follows is told in words, not by a signal
    const std::set<int> inherited = listening_sockets();  // such as one that MPICH leaves open
    const auto until = steady_clock::now() + options.join_timeout;
    const Deadline deadline(until + std::chrono::seconds(5), [this] {
      if (options_.end)
        options_.end(cat("the ranks did not meet at ", launched_.address, ":", launched_.port, ": it does not answer"));
    });
    meeting_ = meet(launched, options.version, until);
    for (const ProcessInfo& one : meeting_.processes) nodes_.push_back(one.node);
    start_watch(until);
    connect(until);
    std::set<int> ours = listening_sockets();
    for (int other : inherited) ours.erase(other);
    seal(ours);
  }

  ~Processes() override {
    watch_.reset();  // first: it calls what is below
  }

  std::string name() const override { return "gloo"; }
  int size() const override { return launched_.size; }
  int first() const override { return launched_.rank; }
  int rank() const override { return launched_.rank; }
  const std::vector<std::string>& nodes() const override { return nodes_; }
  bool restarted() const override { return meeting_.restarted; }
  void begin() override {
    if (launched_.rank == 0 && meeting_.whole) startrail::begin(*meeting_.whole);
  }
  bool looks() const override {
    const auto first = std::ranges::find(meeting_.processes, own().disk, &ProcessInfo::disk);
    return launched_.rank > 0 && first - meeting_.processes.begin() == launched_.rank;
  }

  int ranks_here() const override { return static_cast<int>(here().size()); }

  // A core is shared by those who may run on it: all ranks of the host, or the one it is bound to.
  int threads_each(int threads) const override {
    if (threads > 0) return std::max(1, threads / ranks_here());
    double share = 0;
    for (int core : own().cores) {
      int sharers = 0;
      for (int rank : here()) sharers += std::ranges::binary_search(meeting_.processes[rank].cores, core);
      share += 1.0 / sharers;
    }
    return std::max(1, static_cast<int>(std::floor(share + 1e-9)));
  }

  void run(int threads, const Body& body) override {
    at::set_num_threads(threads_each(threads));
    try {
      if (takes_turns_ && here()[0] == launched_.rank)
        slots_->resize(threads > 0 ? threads : static_cast<int>(own().cores.size()));
      const auto group = std::make_shared<Group>(backend_, slots_);
      body(group);
      group->control().barrier();  // none ends while another needs it
    } catch (...) {
      fail(reason_of(std::current_exception()), is_user_error(std::current_exception()));
      throw;
    }
  }

  std::string once(const std::function<std::string()>& make) override {
    const std::string key = cat("once/", ++asked_);
    if (size() == 1) return make();
    if (launched_.rank == 0) {
      try {
        const std::string text = make();
        put(*meeting_.store, key, "=" + text);
        return text;
      } catch (const std::exception& error) {
        put(*meeting_.store, key, "!" + reason_of(error));
        throw;
      }
    }
    const std::string answer = wait_for(key);
    if (answer[0] == '!') throw UserError(answer.substr(1));
    return answer.substr(1);
  }

  void compare(const std::map<std::string, std::string>& facts) override {
    if (size() == 1) return;
    const std::string round = cat("facts/", ++asked_);
    put(*meeting_.store, cat(round, "/", launched_.rank),
        json(facts).dump(-1, ' ', false, json::error_handler_t::replace));
    std::string error;
    if (launched_.rank == 0) {
      Differences found;
      for (int rank = 1; rank < size(); ++rank)
        found.add(facts, json::parse(wait_for(cat(round, "/", rank))), rank, nodes_);
      error = found.text();
      put(*meeting_.store, cat(round, "/all"), error);
    } else {
      error = wait_for(cat(round, "/all"));
    }
    if (error.empty()) return;
    // Rank 0 may have the store, which the others need until they know.
    if (launched_.rank > 0) put(*meeting_.store, cat(round, "/known/", launched_.rank), "");
    for (int rank = 1; launched_.rank == 0 && rank < size(); ++rank) wait_for(cat(round, "/known/", rank));
    throw UserError(error);
  }

  void doing(const std::string& what) override { watch_->doing(what); }
  void set_timeout(std::chrono::seconds timeout) override { watch_->set_timeout(timeout); }
  void set_give_up(std::function<std::optional<std::string>()> give_up) override {
    watch_->set_give_up(std::move(give_up));
  }
  void fail(const std::string& why, bool of_user) override { watch_->fail(why, of_user); }
  bool is_of_user() const override { return watch_->is_of_user(); }
  std::optional<std::string> speech(const std::string& own) override { return watch_->speech(own); }

 private:
  const ProcessInfo& own() const { return meeting_.processes[launched_.rank]; }
  // The ranks of this host.
  std::vector<int> here() const {
    std::vector<int> ranks;
    for (int rank = 0; rank < size(); ++rank)
      if (meeting_.processes[rank].boot == own().boot) ranks.push_back(rank);
    return ranks;
  }

  void start_watch(steady_clock::time_point until) {
    WatchOptions options;
    options.rank = launched_.rank;
    options.size = launched_.size;
    options.nodes = nodes_;
    options.secret = meeting_.word;
    options.timeout = options_.timeout;
    options.on_verdict = [this](const std::string& verdict) {
      std::lock_guard lock(mutex_);
      verdict_ = verdict;
      slots_->abort(verdict);
      if (gloo_) gloo_->abort(verdict);
    };
    options.claim = [this](int flag) {
      std::lock_guard lock(mutex_);
      return !page_ || page_->raise(flag);
    };
    if (options_.end) options.on_stuck = [this] { options_.end(watch_ ? watch_->speech("").value_or("") : ""); };
    watch_ = std::make_unique<Watch>(std::move(options), std::move(meeting_.watch), until);
    meeting_.watch.close();
  }

  void connect(steady_clock::time_point until) {
    if (size() == 1) {
      alone_ = std::make_unique<LocalWorld>(1);
      backend_ = alone_->backend(0);
      return;
    }
    GlooOptions options;
    options.rank = launched_.rank;
    options.size = launched_.size;
    options.address = own().address;
    options.connect = std::chrono::duration_cast<std::chrono::milliseconds>(until - steady_clock::now());
    options.on_broken = [this](int peer, const std::string& why) { return watch_->lost(peer, why); };
    auto gloo = std::make_unique<GlooWorld>(meeting_.store, options);
    backend_ = gloo->backend();
    {
      std::lock_guard lock(mutex_);
      gloo_ = std::move(gloo);
      if (verdict_) gloo_->abort(*verdict_);
    }
    share_host();
    // Nobody closes his doors before all are connected.
    put(*meeting_.store, cat("connected/", launched_.rank), "");
    if (launched_.rank == 0) {
      for (int rank = 1; rank < size(); ++rank) wait_for(cat("connected/", rank));
      put(*meeting_.store, "connected/all", "");
    } else {
      wait_for("connected/all");
    }
    if (page_) page_->close_place();
  }

  // Processes that share cores take turns at computing, as threads do: all at once they would push each other out of
  // the caches. Those that are bound to cores of their own need no turns.
  void share_host() {
    const std::vector<int> ranks = here();
    if (ranks.size() == 1) return;
    const std::string key = cat("page/", ranks[0]);
    const auto slots = static_cast<int>(own().cores.size());
    std::unique_ptr<SharedPage> page;
    if (launched_.rank == ranks[0]) {
      page = std::make_unique<SharedPage>(meeting_.word, slots, size());
      put(*meeting_.store, key, page->place());
    } else {
      page = SharedPage::open(wait_for(key), meeting_.word);
    }
    const bool shared = std::ranges::all_of(ranks, [&](int r) { return meeting_.processes[r].cores == own().cores; });
    std::lock_guard lock(mutex_);
    page_ = std::move(page);
    if (!page_ || !shared) return;
    takes_turns_ = true;
    slots_ = std::make_shared<ComputeSlots>(page_->turns(), slots);
    if (verdict_) slots_->abort(*verdict_);
  }

  std::string wait_for(const std::string& key) {
    return wait_for_key(*meeting_.store, key, [&] { slots_->check(); });
  }

  Launched launched_;
  ProcessOptions options_;
  Meeting meeting_;
  std::vector<std::string> nodes_;
  std::shared_ptr<ComputeSlots> slots_ = std::make_shared<ComputeSlots>(1);
  bool takes_turns_ = false;
  int asked_ = 0;
  std::mutex mutex_;
  std::optional<std::string> verdict_;
  std::unique_ptr<SharedPage> page_;
  std::unique_ptr<LocalWorld> alone_;
  std::unique_ptr<GlooWorld> gloo_;
  c10::intrusive_ptr<c10d::Backend> backend_;
  std::unique_ptr<Watch> watch_;
};

}  // namespace

std::unique_ptr<ProcessWorld> ProcessWorld::open(const Launched& launched, const ProcessOptions& options) {
  return std::make_unique<Processes>(launched, options);
}

}  // namespace startrail

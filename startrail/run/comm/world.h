// Where the ranks of a job are: threads of this process (local_world), or one process each on any hosts
// (hosts/process_world.h). Whatever runs a job takes a world and is the same for both.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "startrail/run/comm/group.h"

namespace startrail {

class World {
 public:
  using Body = std::function<void(const std::shared_ptr<Group>&)>;

  virtual ~World() = default;

  virtual std::string name() const = 0;  // "local", "gloo"
  virtual int size() const = 0;
  // The lowest rank that lives in this process: its results are this process's.
  virtual int first() const = 0;
  // The name of each rank's node: what crosses from one to another takes the slow links.
  virtual const std::vector<std::string>& nodes() const = 0;
  // Ranks that share this host's cores and memory.
  virtual int ranks_here() const = 0;
  // Threads each of them computes with when `threads` are there for all of them together; 0: as many as cores.
  virtual int threads_each(int threads) const = 0;

  // Calls `body` for every rank that lives in this process, each on threads_each(threads) threads, and returns when all
  // of these are done. When a rank throws, here or elsewhere, the others stop at their next message, wait, turn or
  // tile; the first error is thrown here, and ClusterError where it was another process's.
  virtual void run(int threads, const Body& body) = 0;

  // What `make` says on rank 0, on every process: for what is costly to find out, or may differ between hosts.
  virtual std::string once(const std::function<std::string()>& make) = 0;
  // Whether this process should look if what once() says is true of its node: one process of each node does.
  virtual bool looks() const = 0;
  // Compares these facts, by name, with rank 0's before the ranks talk about them. UserError, on every process, that
  // names the ranks which differ and in what.
  virtual void compare(const std::map<std::string, std::string>& facts) = 0;

  // What this process is at, such as "step 12": others say it when it is lost.
  virtual void doing(const std::string& what) = 0;
};

// All ranks as threads of this process. With more ranks than threads that many compute at a time.
std::unique_ptr<World> local_world(int ranks);
// The world of processes that a job was started with, which stays the caller's; null: a local one.
std::shared_ptr<World> world_of(World* processes, int ranks);

}  // namespace startrail

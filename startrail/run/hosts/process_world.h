// A world with one rank in each process, on any hosts: started by torchrun, mpirun, srun or `startrail launch`,
// connected by Gloo, watched over by rank 0.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "startrail/run/comm/world.h"
#include "startrail/run/hosts/launched.h"

namespace startrail {

struct ProcessOptions {
  std::string version;                     // must be the same in every process
  std::chrono::seconds timeout{30};        // of a rank that gives no sign of life
  std::chrono::seconds join_timeout{120};  // for all processes to meet
  // What ends this process when its rank does not do so by itself soon after the job is over, or when a store that does
  // not answer keeps it: gets what to say, "" when another says it. Nothing: the process is never ended.
  std::function<void(const std::string& message)> end = {};
};

class ProcessWorld : public World {
 public:
  // Meets the other processes. ClusterError or UserError when that cannot be; every process that came gets to know.
  static std::unique_ptr<ProcessWorld> open(const Launched& launched, const ProcessOptions& options);

  virtual int rank() const = 0;
  // The same launcher started this job before, and it came as far as begin(): it goes on from what that left.
  virtual bool restarted() const = 0;
  // Called when all is checked and the work starts.
  virtual void begin() = 0;
  virtual void set_timeout(std::chrono::seconds timeout) = 0;
  // Asked several times a second on rank 0: a reason to end the job, or nothing.
  virtual void set_give_up(std::function<std::optional<std::string>()> give_up) = 0;

  // Tells the others that this process failed, outside of run(), by what the user can repair or not. Nothing when the
  // job is over already.
  virtual void fail(const std::string& why, bool of_user) = 0;
  // The job is over by what the user can repair.
  virtual bool is_of_user() const = 0;
  // What this process has to tell the user of a failure it ends with, once: `own`, or the reason why all end; nothing
  // when another process speaks. Of several that fail for the same reason, and of those that a failure elsewhere ends,
  // only one does.
  virtual std::optional<std::string> speech(const std::string& own) = 0;
};

}  // namespace startrail

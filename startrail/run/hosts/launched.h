// Which rank this process is, of how many, and where they meet: read from what torchrun, mpirun, srun or `startrail
// launch` put into the environment.
#pragma once

#include <functional>
#include <optional>
#include <string>

namespace startrail {

struct Launched {
  int rank = 0, size = 1;
  std::string launcher = "";  // "torchrun", "Open MPI", ...
  std::string address = "";   // where rank 0 or the launcher's own store listens
  int port = 0;
  bool served = false;    // the launcher has the store; otherwise rank 0 makes one
  std::string job = "";   // the same for all ranks of it, as far as the launcher tells
  bool speaks = true;     // the first of its host: says what goes wrong before the ranks have met
  std::string note = "";  // what another launcher's variables say, when they disagree; "" otherwise
};

// The value of a variable, "" when it is not set.
using Environment = std::function<std::string(const std::string&)>;
std::string process_environment(const std::string& name);

// The number of the launcher's process: the nearest above this one that was started without `variable`, which the
// launcher sets. Shells between the two have it.
int launcher_of(const std::string& variable);

// Nothing when no launcher started this process. Where mpirun gives no port one is made of `launcher`, asked with a
// variable's name. UserError for variables that are no numbers, a rank outside of the job, and ranks on several hosts
// without an address.
std::optional<Launched> find_launched(const Environment& environment,
                                      const std::function<int(const std::string& variable)>& launcher);

// The first name of a list as Slurm writes it: "n[01-04,7],m1" gives "n01".
std::string first_host(const std::string& list);

}  // namespace startrail

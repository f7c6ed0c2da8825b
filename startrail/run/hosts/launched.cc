#include "startrail/run/hosts/launched.h"

#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <vector>

#include "startrail/base/error.h"

namespace startrail {
namespace {

// Ports below those that systems give out by themselves.
int port_of(int64_t number) { return static_cast<int>(10000 + number % 20000); }

// One launcher's way to say it.
struct Dialect {
  std::string launcher, rank, size, local_rank;
};

const std::vector<Dialect>& dialects() {
  static const std::vector<Dialect> all{
      {"RANK and WORLD_SIZE", "RANK", "WORLD_SIZE", "LOCAL_RANK"},
      {"Open MPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"},
      {"MPICH", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID"},
      {"srun", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID"},
  };
  return all;
}

class Reader {
 public:
  explicit Reader(const Environment& environment) : environment_(environment) {}

  std::string text(const std::string& name) const { return environment_(name); }
  bool has(const std::string& name) const { return !text(name).empty(); }
  int number(const std::string& name, int least, int most) const {
    const int64_t value = parse_int(text(name), name);
    if (value < least || value > most) throw UserError(cat(name, " ", value, " must be ", least, " to ", most));
    return static_cast<int>(value);
  }
  // Of jobs and steps: any number, of which some have a meaning of their own.
  int64_t id(const std::string& name) const { return has(name) ? parse_int(text(name), name) : 0; }
  bool speaks(const Dialect& dialect) const { return has(dialect.rank) && has(dialect.size); }

 private:
  const Environment& environment_;
};

// Where mpirun's ranks meet when nobody said: only ranks of one host can know.
void meet_by_launcher(const Reader& reader, const char* local_size, const char* options, int launcher,
                      Launched& launched) {
  const bool one_host = reader.has(local_size) && reader.number(local_size, 1, 1 << 20) == launched.size;
  if (!one_host)
    throw UserError(cat(launched.launcher, " started ", launched.size,
                        " ranks on several hosts and none knows where to meet", ": add the options ", options,
                        " with the address of rank 0's host and a free port there"));
  launched.address = "127.0.0.1";
  launched.port = port_of(launcher);
}

using FindLauncher = std::function<int(const std::string& variable)>;

void find_address(const Reader& reader, const FindLauncher& launcher, Launched& launched) {
  const bool named = reader.has("MASTER_ADDR") && reader.has("MASTER_PORT");
  if (reader.has("MASTER_ADDR") != reader.has("MASTER_PORT"))
    throw UserError(cat("MASTER_ADDR and MASTER_PORT go together, but only ",
                        reader.has("MASTER_ADDR") ? "MASTER_ADDR" : "MASTER_PORT", " is set: set both or none"));
  if (named) {
    launched.address = reader.text("MASTER_ADDR");
    if (launched.address == "0.0.0.0" || launched.address == "::")
      throw UserError(cat("MASTER_ADDR ", launched.address, " means every address of a host: give the one of rank 0's ",
                          "host that the others reach"));
    launched.port = reader.number("MASTER_PORT", 1, 65535);
    launched.served = reader.text("TORCHELASTIC_USE_AGENT_STORE") == "True";
  } else if (launched.launcher == "Open MPI") {
    meet_by_launcher(reader, "OMPI_COMM_WORLD_LOCAL_SIZE", "-x MASTER_ADDR=10.0.0.1 -x MASTER_PORT=29500",
                     launcher("OMPI_COMM_WORLD_RANK"), launched);
  } else if (launched.launcher == "MPICH") {
    meet_by_launcher(reader, "MPI_LOCALNRANKS", "-genv MASTER_ADDR 10.0.0.1 -genv MASTER_PORT 29500",
                     launcher("PMI_RANK"), launched);
  } else if (launched.size == 1) {
    launched.address = "127.0.0.1";
  } else if (launched.launcher == "srun") {
    launched.address = first_host(reader.text("SLURM_STEP_NODELIST"));
    launched.port = port_of(reader.id("SLURM_JOB_ID") * 97 + reader.id("SLURM_STEP_ID"));
  } else {
    throw UserError(cat("RANK and WORLD_SIZE are set without MASTER_ADDR and MASTER_PORT: set them to where rank 0 ",
                        "listens, start with torchrun or startrail launch, or give --comm local"));
  }
}

}  // namespace

std::string process_environment(const std::string& name) {
  const char* value = std::getenv(name.c_str());
  return value ? value : "";
}

std::string first_host(const std::string& list) {
  std::string host;
  for (size_t i = 0; i < list.size() && list[i] != ','; ++i) {
    if (list[i] != '[') {
      host += list[i];
      continue;
    }
    // Of the first range the first number, and on behind the bracket.
    for (++i; i < list.size() && list[i] != '-' && list[i] != ',' && list[i] != ']'; ++i) host += list[i];
    i = list.find(']', i);
    if (i == std::string::npos) break;
  }
  return host;
}

int launcher_of(const std::string& variable) {
  int process = getppid();
  for (;;) {
    std::ifstream file(cat("/proc/", process, "/environ"));
    bool set = false;
    for (std::string one; !set && std::getline(file, one, '\0');) set = one.starts_with(variable + "=");
    if (!set) return process;
    // "1234 (name) S 1200 ...", where the name may hold anything.
    std::string stat;
    std::getline(std::ifstream(cat("/proc/", process, "/stat")), stat);
    int parent = 0;
    if (std::sscanf(stat.c_str() + stat.rfind(')') + 1, " %*c %d", &parent) != 1 || parent < 1) return process;
    process = parent;
  }
}

std::optional<Launched> find_launched(const Environment& environment, const FindLauncher& launcher) {
  const Reader reader(environment);
  const Dialect* used = nullptr;
  Launched launched;
  for (const Dialect& dialect : dialects()) {
    if (!reader.speaks(dialect)) continue;
    constexpr int kMost = 1 << 20;
    const int size = reader.number(dialect.size, 1, kMost), rank = reader.number(dialect.rank, 0, size - 1);
    if (!used) {
      used = &dialect;
      launched.rank = rank;
      launched.size = size;
      launched.launcher = dialect.launcher;
      launched.speaks = rank == 0 || !reader.has(dialect.local_rank) || reader.id(dialect.local_rank) == 0;
    } else if (launched.note.empty() && (rank != launched.rank || size != launched.size)) {
      launched.note = cat(used->rank, " and ", used->size, " say rank ", launched.rank, " of ", launched.size,
                          ", and that counts; ", dialect.rank, " and ", dialect.size, " say rank ", rank, " of ", size);
    }
  }
  if (!used) return std::nullopt;
  if (used == &dialects().front()) {
    if (reader.has("TORCHELASTIC_RUN_ID")) launched.launcher = "torchrun";
    if (reader.has("STARTRAIL_LAUNCH")) launched.launcher = "startrail launch";
  }
  // `srun --mpi=pmi2` speaks as MPICH does, too.
  if (launched.launcher == "MPICH" && reader.has("SLURM_STEP_NODELIST") && !reader.has("MPI_LOCALNRANKS"))
    launched.launcher = "srun";
  find_address(reader, launcher, launched);
  for (const char* name :
       {"TORCHELASTIC_RUN_ID", "STARTRAIL_LAUNCH", "SLURM_JOB_ID", "SLURM_STEP_ID", "PMIX_NAMESPACE"})
    launched.job += cat(reader.text(name), "/");
  return launched;
}

}  // namespace startrail

#include "startrail/run/hosts/launched.h"

#include <gtest/gtest.h>

#include <map>

#include "startrail/base/testing.h"

namespace startrail {
namespace {

using Variables = std::map<std::string, std::string>;

std::optional<Launched> find(const Variables& variables, int launcher = 1234) {
  const Environment environment = [&](const std::string& name) {
    const auto found = variables.find(name);
    return found == variables.end() ? std::string() : found->second;
  };
  return find_launched(environment, [&](const std::string&) { return launcher; });
}

const Variables kTorchrun{{"RANK", "3"},
                          {"WORLD_SIZE", "8"},
                          {"LOCAL_RANK", "1"},
                          {"MASTER_ADDR", "host0"},
                          {"MASTER_PORT", "29400"},
                          {"TORCHELASTIC_RUN_ID", "none"},
                          {"TORCHELASTIC_USE_AGENT_STORE", "True"}};
const Variables kOpenMpi{{"OMPI_COMM_WORLD_RANK", "2"},
                         {"OMPI_COMM_WORLD_SIZE", "4"},
                         {"OMPI_COMM_WORLD_LOCAL_RANK", "2"},
                         {"OMPI_COMM_WORLD_LOCAL_SIZE", "4"}};
const Variables kMpich{{"PMI_RANK", "0"}, {"PMI_SIZE", "2"}, {"MPI_LOCALRANKID", "0"}, {"MPI_LOCALNRANKS", "2"}};
const Variables kSrun{{"SLURM_PROCID", "5"},  {"SLURM_STEP_NUM_TASKS", "8"},
                      {"SLURM_LOCALID", "0"}, {"SLURM_STEP_NODELIST", "n[01-04]"},
                      {"SLURM_JOB_ID", "77"}, {"SLURM_STEP_ID", "2"}};

Variables with(Variables base, const Variables& more) {
  for (const auto& [name, value] : more) base[name] = value;
  return base;
}

TEST(Launched, IsNothingWithoutALauncher) {
  EXPECT_FALSE(find({}));
  EXPECT_FALSE(find({{"RANK", "1"}}));                                 // alone it says nothing
  EXPECT_FALSE(find({{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "8"}}));  // a batch script, not a step
}

TEST(Launched, ReadsEachLauncher) {
  const Launched torchrun = *find(kTorchrun);
  EXPECT_EQ(torchrun.rank, 3);
  EXPECT_EQ(torchrun.size, 8);
  EXPECT_EQ(torchrun.launcher, "torchrun");
  EXPECT_EQ(torchrun.address, "host0");
  EXPECT_EQ(torchrun.port, 29400);
  EXPECT_TRUE(torchrun.served);
  EXPECT_FALSE(torchrun.speaks);

  const Launched open_mpi = *find(kOpenMpi);
  EXPECT_EQ(open_mpi.rank, 2);
  EXPECT_EQ(open_mpi.launcher, "Open MPI");
  EXPECT_EQ(open_mpi.address, "127.0.0.1");
  EXPECT_EQ(open_mpi.port, 11234);
  EXPECT_FALSE(open_mpi.served);

  const Launched mpich = *find(kMpich, 25000);
  EXPECT_EQ(mpich.launcher, "MPICH");
  EXPECT_EQ(mpich.port, 15000);
  EXPECT_TRUE(mpich.speaks);

  const Launched srun = *find(kSrun);
  EXPECT_EQ(srun.rank, 5);
  EXPECT_EQ(srun.launcher, "srun");
  EXPECT_EQ(srun.address, "n01");
  EXPECT_EQ(srun.port, 10000 + 77 * 97 + 2);
  EXPECT_TRUE(srun.speaks);  // the first of its host
  EXPECT_EQ(find(with(kTorchrun, {{"STARTRAIL_LAUNCH", "1"}}))->launcher, "startrail launch");
}

TEST(Launched, TakesTheFirstOfTwoAndSaysSo) {
  EXPECT_EQ(find(kTorchrun)->note, "");
  const Launched both = *find(with(kTorchrun, kSrun));
  EXPECT_EQ(both.rank, 3);
  EXPECT_EQ(
      both.note,
      "RANK and WORLD_SIZE say rank 3 of 8, and that counts; SLURM_PROCID and SLURM_STEP_NUM_TASKS say rank 5 of 8");
  // srun --mpi=pmi2 sets both alike.
  const Launched alike = *find(with(kSrun, {{"PMI_RANK", "5"}, {"PMI_SIZE", "8"}, {"MPI_LOCALNRANKS", "8"}}));
  EXPECT_EQ(alike.launcher, "MPICH");
  EXPECT_EQ(alike.note, "");
  const Launched slurm = *find(with(kSrun, {{"PMI_RANK", "5"}, {"PMI_SIZE", "8"}}));
  EXPECT_EQ(slurm.launcher, "srun");
  EXPECT_EQ(slurm.address, "n01");
}

TEST(Launched, TellsJobsApart) {
  EXPECT_EQ(find(kTorchrun)->job, find(with(kTorchrun, {{"RANK", "4"}, {"LOCAL_RANK", "2"}}))->job);
  EXPECT_NE(find(kTorchrun)->job, find(with(kTorchrun, {{"TORCHELASTIC_RUN_ID", "other"}}))->job);
  EXPECT_NE(find(kSrun)->job, find(with(kSrun, {{"SLURM_STEP_ID", "3"}}))->job);
  // The numbers of steps that Slurm itself starts are near 2^32.
  EXPECT_GT(find(with(kSrun, {{"SLURM_STEP_ID", "4294967291"}}))->port, 0);
}

TEST(Launched, SaysWhatIsMissing) {
  EXPECT_EQ(error_of([] {
              find({{"RANK", "1"}, {"WORLD_SIZE", "2"}});
            }),
            "RANK and WORLD_SIZE are set without MASTER_ADDR and MASTER_PORT: set them to where rank 0 listens, start "
            "with torchrun or startrail launch, or give --comm local");
  EXPECT_EQ(error_of([] {
              find(with(kOpenMpi, {{"OMPI_COMM_WORLD_LOCAL_SIZE", "2"}}));
            }),
            "Open MPI started 4 ranks on several hosts and none knows where to meet: add the options -x "
            "MASTER_ADDR=10.0.0.1 -x MASTER_PORT=29500 with the address of rank 0's host and a free port there");
  EXPECT_NE(error_of([] {
              find(with(kMpich, {{"MPI_LOCALNRANKS", "1"}}));
            }).find("-genv MASTER_ADDR"),
            std::string::npos);
  EXPECT_EQ(error_of([] {
              find(with(kSrun, {{"MASTER_ADDR", "n01"}}));
            }),
            "MASTER_ADDR and MASTER_PORT go together, but only MASTER_ADDR is set: set both or none");
  EXPECT_EQ(error_of([] {
              find(with(kTorchrun, {{"MASTER_ADDR", "0.0.0.0"}}));
            }),
            "MASTER_ADDR 0.0.0.0 means every address of a host: give the one of rank 0's host that the others reach");
  EXPECT_EQ(error_of([] { find(with(kTorchrun, {{"RANK", "8"}})); }), "RANK 8 must be 0 to 7");
  EXPECT_EQ(error_of([] {
              find(with(kTorchrun, {{"WORLD_SIZE", "many"}}));
            }),
            "WORLD_SIZE 'many' is not a whole number");
  EXPECT_EQ(error_of([] {
              find(with(kTorchrun, {{"MASTER_PORT", "70000"}}));
            }),
            "MASTER_PORT 70000 must be 1 to 65535");
  EXPECT_EQ(find({{"RANK", "0"}, {"WORLD_SIZE", "1"}})->size, 1);  // nobody to meet
}

TEST(Launched, FindsTheFirstHostOfAList) {
  EXPECT_EQ(first_host("n1"), "n1");
  EXPECT_EQ(first_host("n1,n2"), "n1");
  EXPECT_EQ(first_host("n[01-04]"), "n01");
  EXPECT_EQ(first_host("n[7,9-12],m1"), "n7");
  EXPECT_EQ(first_host("rack[2-3]n[5-6]x,m1"), "rack2n5x");
  EXPECT_EQ(first_host(""), "");
}

}  // namespace
}  // namespace startrail

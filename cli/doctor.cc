// startrail doctor: what this machine offers and what is missing.
#include <ATen/Parallel.h>
#include <torch/version.h>
#include <CLI/CLI.hpp>

#include <iostream>
#include <nlohmann/json.hpp>

#include "cli/command.h"
#include "cli/world.h"
#include "startrail/base/error.h"
#include "startrail/base/system.h"
#include "startrail/base/text.h"
#include "startrail/base/threads.h"
#include "startrail/base/version.h"
#include "startrail/run/hosts/net.h"
#include "startrail/run/kernel/cpu/cpu.h"

namespace startrail::cli {
namespace {

// Where other hosts' ranks would meet those of this one.
nlohmann::json host_facts() {
  const std::string name = host_name();
  std::string address;
  try {
    address = address_towards(name, 1);
  } catch (const ClusterError&) {
    address = "unknown";
  }
  return {{"name", name}, {"address", address}};
}

nlohmann::json examine() {
  nlohmann::json report;
  report["startrail"] = kVersion;
  report["torch"] = TORCH_VERSION;
  report["compiler"] = __VERSION__;
  report["cores"] = available_cores();
  report["threads"] = at::get_num_threads();
  report["backends"] = {{"local", true}, {"gloo", true}, {"nccl", false}};
  report["launcher"] = launched_by() ? launched_by()->launcher : "none";
  report["host"] = host_facts();
  report["kernels"] = {"flash", "aten", "reference"};
  const std::vector<std::string> levels = cpu::level_names();
  report["levels"] = levels;
  std::vector<std::string> missing;
  try {
    report["level"] = cpu::level().name;
  } catch (const UserError& error) {
    report["level"] = "none";
    missing.push_back(error.what());
  }
  if (levels.size() == 1) missing.push_back("AVX2: attention will be slow on this CPU");
  if (std::string(TORCH_VERSION).rfind("2.13.", 0) != 0)
    missing.push_back(cat("torch 2.13: ", TORCH_VERSION, " is untested here"));
  if (is_loopback(report["host"]["address"].get<std::string>()))
    missing.push_back(cat("gloo on several hosts: the name ", report["host"]["name"].get<std::string>(),
                          " of this host means ", report["host"]["address"].get<std::string>(),
                          " here, so give MASTER_ADDR as a number when rank 0 runs here"));
  missing.push_back("nccl: this version runs on CPUs only");
  report["missing"] = missing;
  return report;
}

}  // namespace

void add_doctor(CLI::App& app) {
  CLI::App* command =
      app.add_subcommand("doctor", "Show torch, instruction sets, threads, backends, and what is missing");
  command->footer("Example:\n  startrail doctor --json");
  auto json = std::make_shared<bool>(false);
  command->add_flag("--json", *json, "Print JSON");
  command->callback([json] {
    if (const auto launched = launched_by(); launched && !launched->speaks) return;  // one of each host
    const nlohmann::json report = examine();
    if (*json) {
      std::cout << report.dump(2) << "\n";
      return;
    }
    const auto yes_no = [](bool value) { return std::string(value ? "yes" : "no"); };
    std::vector<std::vector<std::string>> rows;
    rows.push_back({"startrail", report["startrail"].get<std::string>()});
    rows.push_back({"torch", report["torch"].get<std::string>()});
    rows.push_back({"compiler", report["compiler"].get<std::string>()});
    rows.push_back({"cores", cat(report["cores"])});
    rows.push_back({"threads", cat(report["threads"])});
    for (const auto& [name, value] : report["backends"].items()) rows.push_back({"backend " + name, yes_no(value)});
    rows.push_back({"started by", report["launcher"].get<std::string>()});
    rows.push_back(
        {"host", cat(report["host"]["name"].get<std::string>(), ", ", report["host"]["address"].get<std::string>())});
    rows.push_back({"kernels", join(report["kernels"].get<std::vector<std::string>>())});
    rows.push_back({"levels", join(report["levels"].get<std::vector<std::string>>())});
    rows.push_back({"level in use", report["level"].get<std::string>()});
    std::cout << table(rows, "");
    for (const auto& line : report["missing"]) std::cout << "missing  " << line.get<std::string>() << "\n";
  });
}

}  // namespace startrail::cli

#include "cli/world.h"

#include <unistd.h>
#include <CLI/CLI.hpp>

#include <torch/version.h>
#include <iostream>
#include <set>

#include "cli/command.h"
#include "startrail/base/error.h"
#include "startrail/base/version.h"

namespace startrail::cli {
namespace {

std::unique_ptr<ProcessWorld> world;

std::optional<Launched> find() { return find_launched(process_environment, launcher_of); }

// The last resort of a process that cannot end otherwise; from any thread.
void end_process(const std::string& message) {
  if (!message.empty()) {
    const std::string line = cat("startrail: ", message, "\n");
    static_cast<void>(!write(STDERR_FILENO, line.data(), line.size()));
  }
  _exit(3);
}

std::string name_of(const CLI::App& command) {
  const CLI::App* parent = command.get_parent();
  return parent && parent->get_parent() ? cat(name_of(*parent), " ", command.get_name()) : command.get_name();
}

// What this process was told. Hosts may differ in how many threads they have, and in where a file lies that only says
// how to set the rest.
std::map<std::string, std::string> facts_of(const CLI::App& command) {
  std::map<std::string, std::string> facts;
  for (const CLI::Option* option : command.get_options()) {
    const std::string name = option->get_name();
    if (option->count() == 0 || name == "--threads") continue;
    if (name == "config") {
      facts[name] = "given";
    } else if (name == "--set") {
      for (const std::string& text : option->results()) {
        const size_t equals = std::min(text.find('='), text.size());
        const std::string key = text.substr(0, equals);
        if (key != "parallel.threads") facts[key] = text.substr(std::min(equals + 1, text.size()));
      }
    } else {
      facts[name] = join(option->results(), " ");
    }
  }
  return facts;
}

void say_note(const Launched& launched) {
  if (!launched.note.empty()) std::cerr << "startrail: note: " << launched.note << "\n";
}

void say_who(const Launched& launched) {
  const std::set<std::string> nodes(world->nodes().begin(), world->nodes().end());
  std::cerr << "startrail: " << plural(launched.size, "rank") << " by " << launched.launcher << ", over Gloo, on "
            << plural(static_cast<int64_t>(nodes.size()), "node") << " (" << join(nodes) << ")\n";
  say_note(launched);
}

}  // namespace

void CommFlags::add_to(CLI::App& command, bool timeout) {
  command_ = &command;
  command
      .add_option("--comm", comm,
                  "Ranks as threads of this process (local), or one process each, started by torchrun, mpirun, srun or "
                  "startrail launch (gloo); auto: as the environment says")
      ->capture_default_str();
  if (timeout)
    command
        .add_option("--timeout-s", timeout_s,
                    "Seconds without a sign of life after which a rank that is a process is given up")
        ->check(CLI::Range(2, 86400))
        ->capture_default_str();
}

ProcessWorld* CommFlags::open() const {
  if (comm != "auto" && comm != "local" && comm != "gloo")
    throw UserError(cat("comm '", comm, "' is not known; valid: auto, local, gloo"));
  if (comm == "local") return nullptr;
  const std::optional<Launched> launched = find();
  if (!launched && comm == "gloo")
    throw UserError(
        "--comm gloo needs one process for each rank: start it with torchrun --no-python, mpirun, srun or startrail "
        "launch");
  if (!launched) return nullptr;
  // A shell in a step of one task, say: ranks are threads there.
  if (comm == "auto" && launched->size == 1 && !launched->served) {
    say_note(*launched);
    std::cerr << "startrail: " << launched->launcher << " started one process: ranks are its threads\n";
    return nullptr;
  }
  // libtorch's sockets warn of names that nobody needs.
  setenv("TORCH_CPP_LOG_LEVEL", "ERROR", /*overwrite=*/0);
  c10::initLogging();
  ProcessOptions options;
  options.version = cat(kVersion, " with torch ", TORCH_VERSION);
  options.timeout = std::chrono::seconds(timeout_s);
  options.end = end_process;
  world = ProcessWorld::open(*launched, options);
  if (launched->rank == 0)
    say_who(*launched);
  else
    be_silent();
  world->compare({{"the command", name_of(*command_)}});
  world->compare(facts_of(*command_));
  return world.get();
}

void set_ranks(int& ranks, const CLI::Option& given, const ProcessWorld* processes) {
  if (!processes) return;
  if (given.count() > 0 && ranks != processes->size())
    throw UserError(cat("--ranks ", ranks, " does not go with the ", processes->size(),
                        " processes that were started: leave it out, or start as many"));
  ranks = processes->size();
}

void refuse_many(const std::string& what) {
  const auto launched = find();
  if (launched && launched->size > 1)
    throw UserError(cat(what, " runs in one process, but ", launched->launcher, " started ", launched->size,
                        " of them: start it without a launcher"));
}

std::optional<Launched> launched_by() {
  try {
    return find();
  } catch (const UserError&) {
    return std::nullopt;
  }
}

ProcessWorld* opened_world() { return world.get(); }
void close_world() { world.reset(); }

}  // namespace startrail::cli

// Whether a command's ranks are threads or processes: what --comm and the launcher's environment say; and who of many
// processes speaks.
#pragma once

#include <optional>
#include <string>

#include "startrail/run/hosts/process_world.h"

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace startrail::cli {

struct CommFlags {
  std::string comm = "auto";
  int timeout_s = 30;

  // `timeout` adds --timeout-s, for commands that have no setting for it.
  void add_to(CLI::App& command, bool timeout = true);

  // The world of the processes that a launcher started, met and ready, of which only rank 0 prints from now on; null
  // for local ranks. UserError for a --comm that is not known or not to be had, and for processes that were started
  // with other commands or options than rank 0.
  ProcessWorld* open() const;

 private:
  const CLI::App* command_ = nullptr;
};

// As many ranks as processes: `ranks` becomes that. UserError when another number was given.
void set_ranks(int& ranks, const CLI::Option& given, const ProcessWorld* processes);

// UserError when a launcher started several processes of a command that runs but once.
void refuse_many(const std::string& what);

// What launched this process, if something did and it can be understood.
std::optional<Launched> launched_by();

// The world that open() gave, until close_world(), which says that this process is done.
ProcessWorld* opened_world();
void close_world();

}  // namespace startrail::cli

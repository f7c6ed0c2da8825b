#include "cli/run.h"

#include <signal.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <ATen/Parallel.h>
#include <CLI/CLI.hpp>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <limits>

#include "cli/command.h"
#include "cli/world.h"
#include "startrail/base/error.h"
#include "startrail/base/version.h"
#include "startrail/run/comm/reason.h"

namespace startrail::cli {
namespace {

// Takes everything and keeps nothing.
struct Nowhere : std::streambuf {
  int overflow(int letter) override { return traits_type::not_eof(letter); }
};

// What a run of the command changes in its process, put back at its end.
class Process {
 public:
  Process(std::ostream& out, std::ostream& err)
      : out_(std::cout.rdbuf(out.rdbuf())), err_(std::cerr.rdbuf(err.rdbuf())), threads_(at::get_num_threads()) {
    own_out = out.rdbuf() == out_;
    own_err = err.rdbuf() == err_;
    real_err_.rdbuf(std::cerr.rdbuf());
    Process::err = &real_err_;
    sigaction(SIGINT, nullptr, &on_interrupt_);
    sigaction(SIGTERM, nullptr, &on_terminate_);
    sigaction(SIGHUP, nullptr, &on_hangup_);
  }
  ~Process() {
    sigaction(SIGINT, &on_interrupt_, nullptr);
    sigaction(SIGTERM, &on_terminate_, nullptr);
    sigaction(SIGHUP, &on_hangup_, nullptr);
    if (at::get_num_threads() != threads_) at::set_num_threads(threads_);
    std::cerr.rdbuf(err_);  // and no longer failed, if they had
    std::cout.rdbuf(out_);
    own_out = own_err = true;
  }
  Process(const Process&) = delete;

  static inline bool own_out = true, own_err = true;  // std::cout and std::cerr lead to the process's own
  static inline std::ostream* err = nullptr;          // for what goes wrong, also when silent

 private:
  std::streambuf *out_, *err_;
  std::ostream real_err_{nullptr};
  int threads_;
  struct sigaction on_interrupt_, on_terminate_, on_hangup_;
};

// Of many processes the first that fails speaks; before they have met, rank 0 and the first of each host do.
std::optional<std::string> speech(const std::string& message, bool of_user) {
  if (ProcessWorld* world = opened_world()) {
    world->fail(message, of_user);
    return world->speech(message);
  }
  const auto launched = launched_by();
  return launched && !launched->speaks ? std::nullopt : std::optional(message);
}

// The code is that of the rank that failed first.
int fail(int code, const std::string& message) {
  if (const auto text = speech(message, code == 2)) *Process::err << "startrail: " << *text << "\n" << std::flush;
  const ProcessWorld* world = opened_world();
  return code == 3 && world && world->is_of_user() ? 2 : code;
}

size_t columns_of(int terminal) {
  winsize size{};
  const bool known = ioctl(terminal, TIOCGWINSZ, &size) == 0 && size.ws_col > 0;
  return known ? size.ws_col : std::numeric_limits<size_t>::max();
}

}  // namespace

void be_silent() {
  static Nowhere nowhere;
  std::cout.rdbuf(&nowhere);
  std::cerr.rdbuf(&nowhere);
  Process::own_out = Process::own_err = false;
}

bool shows_live(const std::ostream& stream) {
  return &stream == &std::cout ? Process::own_out && isatty(STDOUT_FILENO)
                               : &stream == &std::cerr && Process::own_err && isatty(STDERR_FILENO);
}

size_t live_columns() { return columns_of(STDOUT_FILENO); }

void Progress::show(const std::string& what) {
  if (shows_live(std::cerr))
    std::cerr << "\r\033[K" << cat(what, " ...").substr(0, columns_of(STDERR_FILENO) - 1) << std::flush;
}
Progress::~Progress() {
  if (shows_live(std::cerr)) std::cerr << "\r\033[K" << std::flush;
}

int run(const std::vector<std::string>& arguments, std::ostream& out, std::ostream& err) {
  const Process process(out, err);
  CLI::App app{
      "StarTrail: trains transformers on sequences split across many ranks, with exact attention by concentric rings.\n"
      "Try: startrail train --set data.path=FOLDER --set parallel.ranks=8\n"
      "     startrail plan --ranks 16 --grid startrail:2\n"
      "     startrail attend --ranks 16 --grid startrail:2 --check\n"
      "     startrail show --ranks 16 --grid startrail:2 --compare ring",
      "startrail"};
  app.set_version_flag("--version", cat("startrail ", kVersion));
  app.require_subcommand(0, 1);
  add_tokenize(app);
  add_train(app);
  add_sample(app);
  add_evaluate(app);
  add_export(app);
  add_plan(app);
  add_attend(app);
  add_show(app);
  add_bench(app);
  add_doctor(app);
  add_launch(app);
  try {
    app.parse(std::vector<std::string>(arguments.rbegin(), arguments.rend()));  // it takes them from the back
    if (app.get_subcommands().empty()) std::cout << app.help();
    if (!std::cout.flush()) return fail(3, "the output could not be written");
    return 0;
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) return app.exit(error);  // --help, --version
    const auto chosen = app.get_subcommands();
    return fail(2, cat(error.what(), "; see startrail ", chosen.empty() ? "" : chosen[0]->get_name() + " ", "--help"));
  } catch (const Exit& exit) {
    return exit.code;
  } catch (const UserError& error) {
    return fail(2, error.what());
  } catch (const ClusterError& error) {
    return fail(3, error.what());
  } catch (const c10::Error& error) {
    return fail(3, reason_of(error));
  } catch (const std::filesystem::filesystem_error& error) {
    return fail(2, cat(error.path1().string(), ": ", error.code().message()));
  } catch (const std::bad_alloc&) {
    return fail(3, "there is not enough memory: use fewer tokens, heads or ranks");
  } catch (const std::exception& error) {
    return fail(70, cat("a bug in startrail, please report it: ", error.what()));
  }
}

}  // namespace startrail::cli

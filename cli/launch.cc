// startrail launch: one process for each rank on this host, for those who have no torchrun, mpirun or srun at hand.
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>
#include <CLI/CLI.hpp>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <iostream>
#include <optional>

#include "cli/command.h"
#include "startrail/base/error.h"
#include "startrail/run/hosts/net.h"

namespace startrail::cli {
namespace {

using std::chrono::steady_clock;

struct LaunchFlags {
  int processes = 4, port = 0;
  double grace = 5;
  std::string address = "127.0.0.1", prefix;
  bool label = false;
  std::vector<std::string> command;
};

// What a process writes, line by line behind its rank.
struct Output {
  int from = -1, to = -1;
  std::string label, line;

  // False at its end.
  bool pass() {
    char piece[1 << 14];
    const ssize_t got = read(from, piece, sizeof piece);
    if (got > 0) line.append(piece, static_cast<size_t>(got));
    std::string out;
    for (size_t end; (end = line.find('\n')) != std::string::npos; line.erase(0, end + 1))
      out += cat(label, line.substr(0, end + 1));
    if (got <= 0 && !line.empty()) out += cat(label, line, "\n");
    for (size_t at = 0; at < out.size();) {
      const ssize_t written = write(to, out.data() + at, out.size() - at);
      if (written < 0 && errno != EINTR) break;
      if (written > 0) at += static_cast<size_t>(written);
    }
    return got > 0 || (got < 0 && (errno == EINTR || errno == EAGAIN));
  }
};

struct Child {
  pid_t pid = -1;
  bool ended = false;
  int code = 0;
};

// A free port now; that another takes it before rank 0 does is unlikely, and rank 0 says so then.
int free_port(const std::string& address) {
  try {
    return port_of(listen_on(address, 0));
  } catch (const UserError&) {
    throw UserError(cat("--address ", address,
                        " is not one of this host, so that no free port can be found there: give ",
                        "one that is, or --port too where --prefix takes rank 0 to it"));
  }
}

std::vector<std::string> command_of(const LaunchFlags& flags, int rank) {
  std::string prefix = flags.prefix;
  for (size_t at; (at = prefix.find("{rank}")) != std::string::npos;) prefix.replace(at, 6, cat(rank));
  std::vector<std::string> words;
  for (const std::string& word : split(prefix, ' '))
    if (!word.empty()) words.push_back(word);
  words.push_back(std::filesystem::read_symlink("/proc/self/exe").string());
  words.insert(words.end(), flags.command.begin(), flags.command.end());
  return words;
}

class Launch {
 public:
  explicit Launch(const LaunchFlags& flags) : flags_(flags) {
    sigset_t signals;
    sigemptyset(&signals);
    for (int one : {SIGINT, SIGTERM, SIGHUP, SIGTSTP, SIGCHLD}) sigaddset(&signals, one);
    sigprocmask(SIG_BLOCK, &signals, &before_);
    signals_ = signalfd(-1, &signals, SFD_CLOEXEC | SFD_NONBLOCK);
    const int port = flags.port > 0 ? flags.port : free_port(flags.address);
    raise_file_limit();  // labels need two files of each
    for (int rank = 0; rank < flags.processes; ++rank) start(rank, port);
  }

  // The exit code of the first that failed, or 0.
  int wait() {
    while (std::any_of(children_.begin(), children_.end(), [](const Child& child) { return !child.ended; })) {
      std::vector<pollfd> files{{signals_, POLLIN, 0}};
      for (const Output& output : outputs_) files.push_back({output.from, POLLIN, 0});
      poll(files.data(), files.size(), failed_at_ ? 50 : -1);
      for (size_t i = outputs_.size(); i-- > 0;)
        if (files[i + 1].revents && !outputs_[i].pass()) {
          close(outputs_[i].from);
          outputs_.erase(outputs_.begin() + static_cast<std::ptrdiff_t>(i));
        }
      forward_signals();
      reap();
      if (failed_at_) end_others();
    }
    for (Output& output : outputs_)  // what a process that is gone left; nobody holds it open for ever
      while (poll_once(output.from) && output.pass()) {
      }
    sigprocmask(SIG_SETMASK, &before_, nullptr);
    if (failed_at_ && code_ != kStopped) say_ends();
    return code_;
  }

 private:
  static bool poll_once(int file) {
    pollfd one{file, POLLIN, 0};
    return poll(&one, 1, 100) == 1 && (one.revents & POLLIN);
  }

  void start(int rank, int port) {
    int pipes[2][2] = {{-1, -1}, {-1, -1}};
    if (flags_.label)
      for (int i = 0; i < 2; ++i) {
        if (pipe2(pipes[i], O_CLOEXEC) != 0) throw ClusterError(cat("no pipe: ", std::strerror(errno)));
        outputs_.push_back({pipes[i][0], i == 0 ? STDOUT_FILENO : STDERR_FILENO, cat("[", rank, "] "), ""});
      }
    const std::vector<std::string> words = command_of(flags_, rank);
    std::vector<char*> arguments;
    for (const std::string& word : words) arguments.push_back(const_cast<char*>(word.c_str()));
    arguments.push_back(nullptr);
    const pid_t parent = getpid(), child = fork();
    if (child < 0) throw ClusterError(cat("no process for rank ", rank, ": ", std::strerror(errno)));
    if (child > 0) {
      setpgid(child, child);  // here too: whichever comes first
      children_.push_back({child});
      for (auto& ends : pipes)
        if (ends[1] >= 0) close(ends[1]);
      return;
    }
    // A group of its own: signals come from here alone, once, and reach what a prefix started too.
    setpgid(0, 0);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(3);
    sigprocmask(SIG_SETMASK, &before_, nullptr);
    if (flags_.label) {
      dup2(pipes[0][1], STDOUT_FILENO);
      dup2(pipes[1][1], STDERR_FILENO);
    }
    const std::pair<const char*, std::string> variables[] = {{"RANK", cat(rank)},
                                                             {"WORLD_SIZE", cat(flags_.processes)},
                                                             {"LOCAL_RANK", cat(rank)},
                                                             {"LOCAL_WORLD_SIZE", cat(flags_.processes)},
                                                             {"MASTER_ADDR", flags_.address},
                                                             {"MASTER_PORT", cat(port)},
                                                             {"STARTRAIL_LAUNCH", cat(parent, ".", port)}};
    for (const auto& [name, value] : variables) setenv(name, value.c_str(), 1);
    unsetenv("TORCHELASTIC_USE_AGENT_STORE");  // of a torchrun around this
    execvp(arguments[0], arguments.data());
    const std::string line = cat("startrail: ", words[0], " cannot be started: ", std::strerror(errno), "\n");
    static_cast<void>(!write(STDERR_FILENO, line.data(), line.size()));
    _exit(127);
  }

  void send(int signal) const {
    for (const Child& child : children_)
      if (!child.ended) kill(-child.pid, signal);
  }

  void forward_signals() {
    signalfd_siginfo info;
    while (read(signals_, &info, sizeof info) == sizeof info) {
      if (info.ssi_signo == SIGTSTP)
        pause();
      else if (info.ssi_signo != SIGCHLD)
        send(static_cast<int>(info.ssi_signo));
    }
  }

  // All together, until this process is told to go on: the terminal stops this one alone.
  void pause() const {
    send(SIGSTOP);
    raise(SIGSTOP);
    send(SIGCONT);
  }

  void reap() {
    for (Child& child : children_) {
      int status = 0;
      if (child.ended || waitpid(child.pid, &status, WNOHANG) != child.pid) continue;
      child.ended = true;
      kill(-child.pid, SIGKILL);  // what it may have left behind in its group
      child.code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
      if (child.code == 0 || failed_at_) continue;
      code_ = child.code;
      failed_at_ = steady_clock::now();
    }
  }

  // Of use when something failed: which, and by what.
  void say_ends() const {
    std::vector<std::string> ends;
    for (size_t rank = 0; rank < children_.size(); ++rank) {
      const int code = children_[rank].code;
      ends.push_back(cat(rank, ": ", code, code > 128 ? cat(" (", strsignal(code - 128), ")") : ""));
    }
    std::cerr << "startrail launch: exit codes by rank: " << join(ends) << "\n";
  }

  // The others mostly end by themselves, with a word on why; then they are asked to, and at last made to.
  void end_others() {
    const double seconds = std::chrono::duration<double>(steady_clock::now() - *failed_at_).count();
    if (seconds > flags_.grace) {
      send(SIGKILL);
    } else if (seconds > flags_.grace / 2 && !asked_) {
      asked_ = true;
      send(SIGTERM);
    }
  }

  const LaunchFlags& flags_;
  sigset_t before_;
  int signals_ = -1;
  std::vector<Child> children_;
  std::vector<Output> outputs_;
  std::optional<steady_clock::time_point> failed_at_;
  bool asked_ = false;
  int code_ = 0;
};

void run(const LaunchFlags& flags) {
  if (flags.command.empty()) throw UserError("there is nothing to launch: give a command behind --, such as -- train");
  if (flags.command[0] == "launch") throw UserError("launch does not launch itself: give another command behind --");
  Launch launch(flags);
  if (const int code = launch.wait(); code != 0) throw Exit{code};
}

}  // namespace

void add_launch(CLI::App& app) {
  auto flags = std::make_shared<LaunchFlags>();
  CLI::App* command = app.add_subcommand("launch", "Run another command with one process for each rank, on this host");
  command->add_option("--processes", flags->processes, "Ranks, a process each")
      ->check(CLI::Range(1, 4096))
      ->capture_default_str();
  command->add_option("--address", flags->address, "Where they meet: an address of this host")->capture_default_str();
  command->add_option("--port", flags->port, "And a free port there; 0: any")
      ->check(CLI::Range(0, 65535))
      ->capture_default_str();
  command->add_flag("--label", flags->label, "Put the rank before each line of output");
  command
      ->add_option("--prefix", flags->prefix,
                   "A command to put before each process's, {rank} being its number: 'ip netns exec st-{rank}'; "
                   "its words end at blanks, quotes have no meaning")
      ->type_name("COMMAND");
  command
      ->add_option("--grace", flags->grace,
                   "Seconds that the others have to end after one has failed, before they are made to")
      ->check(CLI::Range(0.0, 3600.0))
      ->capture_default_str();
  command->add_option("command", flags->command, "What to run, behind --: train, attend, evaluate, sample, bench")
      ->type_name("COMMAND ...");
  command->positionals_at_end();
  command->footer(
      "Example: startrail launch --processes 8 -- train examples/configs/quickstart.toml\n"
      "Signals are passed on; when a process fails the others are ended, and its exit code is the command's.");
  command->callback([flags] { run(*flags); });
}

}  // namespace startrail::cli

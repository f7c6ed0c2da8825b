// The subcommands. Each adds itself to the program and runs when chosen; errors are thrown and turned into one sentence
// and an exit code by run.cc.
#pragma once

#include <filesystem>
#include <iosfwd>
#include <string>

namespace CLI {
class App;
}

namespace startrail::cli {

void add_attend(CLI::App& app);
void add_bench(CLI::App& app);
void add_plan(CLI::App& app);
void add_doctor(CLI::App& app);
void add_train(CLI::App& app);
void add_tokenize(CLI::App& app);
void add_sample(CLI::App& app);
void add_export(CLI::App& app);
void add_evaluate(CLI::App& app);
void add_launch(CLI::App& app);
void add_show(CLI::App& app);

// Thrown to end with a code other than 0 after the output said why (a failed --check).
struct Exit {
  int code;
};
constexpr int kStopped = 75;  // asked to stop, all saved, and to be gone on with: EX_TEMPFAIL of sysexits.h

// Nothing is printed from now on but what goes wrong: another process speaks.
void be_silent();

// Whether std::cout or std::cerr leads to a terminal of the process, so that lines may be wiped and written again.
bool shows_live(const std::ostream& stream);

// Columns of the terminal that std::cout leads to, as wide as it is now; many where it does not say.
size_t live_columns();

// A line on stderr that says what is being done and is wiped when done; nothing unless stderr is a terminal.
class Progress {
 public:
  explicit Progress(const std::string& what) { show(what); }
  ~Progress();
  void show(const std::string& what);
};

}  // namespace startrail::cli

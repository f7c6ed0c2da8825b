// startrail show: plans, traces and runs as one page to look at, or a run's losses in the terminal.
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>
#include <CLI/CLI.hpp>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <iostream>
#include <map>
#include <nlohmann/json.hpp>

#include "cli/command.h"
#include "cli/full_disk.h"
#include "cli/page/page.h"
#include "cli/shape.h"
#include "cli/text_model.h"
#include "cli/world.h"
#include "startrail/base/error.h"
#include "startrail/base/file.h"
#include "startrail/plan/check.h"
#include "startrail/plan/make.h"
#include "startrail/train/store/run_files.h"

namespace startrail::cli {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

struct ShowFlags {
  std::vector<std::string> inputs;
  ShapeFlags shape;
  std::optional<int> ranks_per_node;
  std::vector<std::string> compare;
  std::string out = "startrail.html", title;
  bool open = false, text = false;
};

struct Shown {
  json plans = json::array(), traces = json::array(), runs = json::array();
};

// A grid's plans, proved on the way: the page says so.
json make_view(const ShowFlags& flags, const std::string& grid) {
  ShapeFlags shape = flags.shape;
  shape.grid = grid;
  const AttentionOptions options = shape.options();
  for (Pass pass : kPasses) check_plan(make_plan(options.grid, pass));
  PlanSubject subject = shape.subject(options);
  subject.checked = true;
  if (flags.ranks_per_node) subject.cluster = make_cluster(shape.ranks, *flags.ranks_per_node);
  return plan_json(options.grid, shape.problem(options), subject);
}

// Deep nesting would end the program, and nothing of ours has it.
bool is_shallow(std::string_view text) {
  constexpr int kMostDepth = 32;
  int depth = 0;
  bool quoted = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char letter = text[i];
    if (quoted && letter == '\\')
      ++i;
    else if (letter == '"')
      quoted = !quoted;
    else if (!quoted && (letter == '[' || letter == '{') && ++depth > kMostDepth)
      return false;
    else if (!quoted && (letter == ']' || letter == '}'))
      --depth;
  }
  return true;
}

json read_shallow(const fs::path& file) {
  std::ifstream in(file, std::ios::binary);
  if (!in) throw_file_error(file.string(), "cannot be read", errno);
  const std::string text{std::istreambuf_iterator<char>(in), {}};
  if (!is_shallow(text)) throw UserError(cat(file.string(), " is nested more deeply than anything startrail writes"));
  json content = json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (content.is_discarded())
    throw UserError(cat(file.string(), " is no whole JSON: it was cut short, or is something else; startrail shows ",
                        "plans (startrail plan --json), traces (train or attend --profile) and runs' folders"));
  return content;
}

void add_file(Shown& shown, const fs::path& file) {
  json content = read_shallow(file);
  if (content.is_object() && content.contains("traceEvents"))
    shown.traces.push_back(trace_view(content, file));
  else if (content.is_object() && content.value("kind", json()) == "plan")
    shown.plans.push_back(plan_view(std::move(content), file));
  else
    throw UserError(cat(file.string(), " is neither a plan (startrail plan --json), nor a trace (train or attend ",
                        "--profile), nor a run's folder"));
}

Shown gather(const ShowFlags& flags, bool from_flags) {
  Shown shown;
  for (const fs::path input : flags.inputs) {
    if (!fs::exists(input)) throw UserError(cat(input.string(), " does not exist"));
    if (fs::is_directory(input))
      shown.runs.push_back(run_view(input));
    else if (!fs::is_regular_file(input))
      throw UserError(cat(input.string(), " is neither a file nor a folder"));
    else if (input.filename() == kMetricsFile)
      shown.runs.push_back(run_view(fs::absolute(input).parent_path()));
    else
      add_file(shown, input);
  }
  if (from_flags) shown.plans.push_back(make_view(flags, flags.shape.grid));
  for (const std::string& grid : flags.compare) shown.plans.push_back(make_view(flags, grid));
  return shown;
}

// Things of one name are told apart by their files.
void tell_apart(json& list, const char* where) {
  std::map<std::string, int> names;
  for (const json& one : list) ++names[one.value("name", "")];
  for (json& one : list)
    if (names[one.value("name", "")] > 1 && one.contains(where))
      one["name"] = cat(one.value("name", ""), " (", one[where].get<std::string>(), ")");
}

// A page may take the place of a page, and of nothing else: not of a run's record, which is a line too far away.
void check_replaces(const std::string& out) {
  std::ifstream in(out, std::ios::binary);
  char start[2] = {};
  if (fs::is_regular_file(out) && in.read(start, 2) && std::string_view(start, 2) != "<!")
    throw UserError(cat("--out ", out, " exists and is no page: give another name, or remove it first"));
}

void print_curves(const Shown& shown) {
  if (!shown.plans.empty() || !shown.traces.empty())
    throw UserError("--text draws the losses of runs: give folders of runs only; startrail plan prints a plan");
  for (const json& run : shown.runs)
    std::cout << printable(run["name"].get<std::string>()) << " (" << printable(run["folder"].get<std::string>())
              << "): loss, " << printable(run["loss_unit"].get<std::string>()) << "; o: validation\n\n"
              << draw_losses(run, std::min<size_t>(shows_live(std::cout) ? live_columns() : 80, 120)) << "\n";
}

std::string title_of(const Shown& shown) {
  std::vector<std::string> names;
  for (const json* list : {&shown.plans, &shown.traces, &shown.runs})
    for (const json& one : *list) names.push_back(one.value("name", ""));
  if (names.size() > 3) names = {names[0], names[1], cat(names.size() - 2, " more")};
  return cat("StarTrail: ", join(names));
}

void open_page(const std::string& file) {
  const char* browser = std::getenv("BROWSER");
  std::string program = browser && *browser ? browser : "xdg-open", page = fs::absolute(file).string();
  char* arguments[] = {program.data(), page.data(), nullptr};
  pid_t child = 0;
  if (const int code = posix_spawnp(&child, program.c_str(), nullptr, nullptr, arguments, environ); code != 0)
    throw UserError(
        cat(program, " does not start: ", std::strerror(code), "; open ", file, " by hand, or set BROWSER"));
}

void run(const ShowFlags& flags, bool from_flags) {
  refuse_many("show");
  Shown shown = gather(flags, from_flags);
  for (json* list : {&shown.plans, &shown.traces}) tell_apart(*list, "file");
  tell_apart(shown.runs, "folder");
  if (flags.text) return print_curves(shown);
  const auto count = [](const json& list, const char* one) { return plural(static_cast<int64_t>(list.size()), one); };
  const std::string what =
      cat(count(shown.plans, "plan"), ", ", count(shown.traces, "trace"), ", ", count(shown.runs, "run"));
  const std::string title = flags.title.empty() ? title_of(shown) : flags.title;
  check_writable(flags.out, "--out");
  check_replaces(flags.out);
  const std::string page = make_page(
      {{"plans", std::move(shown.plans)}, {"traces", std::move(shown.traces)}, {"runs", std::move(shown.runs)}}, title);
  advise_on_room("make room, or give --out another place", [&] { write_text(flags.out, page); });
  std::cout << "wrote " << flags.out << " (" << human_bytes(static_cast<double>(page.size())) << "): " << what
            << "; it opens in any browser\n";
  if (flags.open) open_page(flags.out);
}

}  // namespace

void add_show(CLI::App& app) {
  auto flags = std::make_shared<ShowFlags>();
  CLI::App* command = app.add_subcommand("show", "Write plans, traces and runs as one HTML page to look at");
  command
      ->add_option("inputs", flags->inputs,
                   "Plans (startrail plan --json), traces (train or attend --profile), folders of runs; several of a "
                   "kind are laid side by side")
      ->type_name("FILE|FOLDER");
  const size_t before = command->get_options().size();
  flags->shape.add_to(*command);
  const auto options = command->get_options();
  const std::vector<const CLI::Option*> shape(options.begin() + static_cast<std::ptrdiff_t>(before), options.end());
  command->add_option("--ranks-per-node", flags->ranks_per_node, "Also show what leaves a node of so many ranks");
  command
      ->add_option("--compare", flags->compare, "Another grid to lay beside it, such as ring; may be given many times")
      ->allow_extra_args(false)
      ->take_all()
      ->type_name("GRID");
  const CLI::Option* out =
      command->add_option("-o,--out", flags->out, "The page")->capture_default_str()->type_name("FILE");
  command->add_option("--title", flags->title, "Its title");
  command->add_flag("--open", flags->open, "Open it in a browser, with xdg-open");
  command->add_flag("--text", flags->text, "Draw the losses of runs here instead of writing a page");
  command->footer(
      "Examples:\n"
      "  startrail show --ranks 16 --grid startrail:2 --compare ring -o plan.html\n"
      "  startrail show runs/quickstart --open\n"
      "  startrail show runs/quickstart --text\n"
      "  startrail attend --ranks 8 --profile trace.json; startrail show trace.json");
  command->callback([flags, command, shape, out] {
    const auto given = [&](const CLI::Option* option) { return option->count() > 0; };
    const bool from_flags = std::ranges::any_of(shape, given);
    if (flags->inputs.empty() && !from_flags && flags->compare.empty()) {
      std::cout << command->help();
      return;
    }
    if (!flags->inputs.empty() && !from_flags && !flags->compare.empty())
      throw UserError("--compare goes with --ranks and --grid: beside a plan from a file give another file");
    if (flags->text && (given(out) || flags->open))
      throw UserError("--text writes no page: leave out --out and --open");
    run(*flags, from_flags || flags->inputs.empty());
  });
}

}  // namespace startrail::cli

// startrail bench kernel: the attention kernel beside PyTorch's, in one process and in turns.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <CLI/CLI.hpp>

#include <chrono>
#include <cmath>
#include <functional>
#include <iostream>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>

#include "cli/command.h"
#include "cli/shape.h"
#include "cli/spread.h"
#include "cli/world.h"
#include "startrail/base/error.h"
#include "startrail/base/text.h"
#include "startrail/run/kernel/cpu/cpu.h"

namespace startrail::cli {
namespace {

struct Shape {
  int64_t tokens = 4096, heads = 4, key_heads = 4, dim = 64, window = 0;
  bool causal = true;
  at::ScalarType type = at::kFloat;
  int threads = 1;
};

struct BenchFlags {
  CommFlags comm;
  std::vector<int64_t> tokens{4096}, dims{64, 128};
  std::vector<std::string> types{"float32"}, masks{"causal", "full"};
  std::vector<int> threads{1, 2};
  int64_t heads = 4, kv_heads = 0;
  int rounds = 5;
  bool json = false;
};

double milliseconds(const std::function<void()>& work) {
  const auto start = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
}

// What PyTorch's scaled_dot_product_attention runs on a CPU, and our kernel, taking turns.
nlohmann::json measure(const Shape& shape, int rounds) {
  at::set_num_threads(shape.threads);
  at::manual_seed(1);
  const auto draw = [&](int64_t heads) { return at::randn({1, heads, shape.tokens, shape.dim}).to(shape.type); };
  const at::Tensor q = draw(shape.heads), k = draw(shape.key_heads), v = draw(shape.key_heads),
                   dout = draw(shape.heads);
  const double scale = 1 / std::sqrt(static_cast<double>(shape.dim));
  const Band band({.causal = shape.causal, .window = shape.window}, shape.tokens, shape.tokens);
  const Pieces pieces{{0, shape.tokens}};
  const double pairs = static_cast<double>(count_pairs(band, pieces, pieces)) * static_cast<double>(shape.heads);
  const double work = 4 * pairs * static_cast<double>(shape.dim);  // floating point operations of a forward pass

  std::optional<at::Tensor> bias;  // PyTorch has no window but a mask
  if (shape.window > 0) {
    bias = at::full({shape.tokens, shape.tokens}, -std::numeric_limits<double>::infinity());
    for (int64_t i = 0; i < shape.tokens; ++i) {
      const Span seen = band.keys_of(i);
      bias->select(0, i).narrow(0, seen.begin, seen.end - seen.begin).zero_();
    }
    bias = bias->to(shape.type);
  }
  at::Tensor their_out, their_lse;
  const auto theirs = [&] {
    std::tie(their_out, their_lse) =
        at::_scaled_dot_product_flash_attention_for_cpu(q, k, v, 0, shape.causal && shape.window == 0, bias, scale);
  };
  const auto theirs_backward = [&] {
    at::_scaled_dot_product_flash_attention_for_cpu_backward(dout, q, k, v, their_out, their_lse, 0,
                                                             shape.causal && shape.window == 0, bias, scale);
  };
  // As attention() does: results in float32, made anew, and delta as part of the backward pass. Its keys and values are
  // planes of one message, though, which have to be packed also where these, dense, are used in place.
  const Kernel& kernel = cpu::flash_kernel();
  const AttendInput input{q, k, v, pieces, pieces, &band, scale};
  const at::TensorOptions wide(at::kFloat);
  Running running;
  const auto ours = [&] {
    running = {at::zeros(q.sizes(), wide),
               at::full({1, shape.heads, shape.tokens}, -std::numeric_limits<double>::infinity(), wide)};
    kernel.attend(input, running);
  };
  const auto ours_backward = [&] {
    const at::Tensor delta = (dout.to(at::kFloat) * running.out).sum(-1);
    Gradients gradients{at::zeros(q.sizes(), wide), at::zeros(k.sizes(), wide), at::zeros(v.sizes(), wide)};
    kernel.attend_backward({input, dout, running.lse, delta}, gradients);
  };
  const int64_t side = 1024;
  const at::Tensor a = at::randn({side, side}).to(shape.type), b = at::randn({side, side}).to(shape.type);
  const auto product = [&] { at::mm(a, b); };
  const double product_work = 2 * std::pow(static_cast<double>(side), 3);

  cpu::Level packs = cpu::level();
  packs.forward = packs.packing.forward;
  packs.backward = packs.packing.backward;
  const auto packer = cpu::make_flash_kernel(packs);
  const auto packing = [&] { packer->attend(input, running); };
  Gradients unchanged{at::zeros(q.sizes(), wide), at::zeros(k.sizes(), wide), at::zeros(v.sizes(), wide)};
  const auto packing_backward = [&] { packer->attend_backward({input, dout, running.lse, running.lse}, unchanged); };
  const std::vector<std::function<void()>> turns{ours,    theirs,  ours_backward,   theirs_backward,
                                                 product, packing, packing_backward};
  std::vector<std::vector<double>> times(turns.size());
  for (int round = -1; round < rounds; ++round)
    for (size_t i = 0; i < turns.size(); ++i) {
      const double ms = milliseconds(turns[i]);
      if (round >= 0) times[i].push_back(ms);
    }
  nlohmann::json json{{"type", shape.type == at::kFloat ? "float32" : "bfloat16"},
                      {"tokens", shape.tokens},
                      {"heads", shape.heads},
                      {"kv_heads", shape.key_heads},
                      {"dim", shape.dim},
                      {"mask", shape.window > 0 ? cat("window ", shape.window)
                               : shape.causal   ? "causal"
                                                : "full"},
                      {"threads", shape.threads}};
  const double gemm = product_work / spread(times[4]).median / 1e6;
  json["gemm_gflops"] = gemm;
  for (int pass = 0; pass < 2; ++pass) {
    const Spread mine = spread(times[2 * pass]), other = spread(times[2 * pass + 1]);
    const double rate = work * (pass ? 2.5 : 1) / mine.median / 1e6;
    json[pass ? "backward" : "forward"] = {{"ms", mine.median},
                                           {"best_ms", mine.min},
                                           {"pytorch_ms", other.median},
                                           {"pytorch_best_ms", other.min},
                                           {"ratio", other.median / mine.median},
                                           {"gflops", rate},
                                           {"share_of_gemm", rate / gemm},
                                           // Bringing inputs into the kernel's layout and results back.
                                           {"packing_share", spread(times[5 + pass]).median / mine.median}};
  }
  return json;
}

std::vector<Shape> shapes_of(const BenchFlags& flags) {
  std::vector<Shape> shapes;
  for (const std::string& type : flags.types)
    for (const std::string& mask : flags.masks)
      for (int64_t tokens : flags.tokens)
        for (int64_t dim : flags.dims)
          for (int threads : flags.threads) {
            Shape shape{tokens, flags.heads, flags.kv_heads > 0 ? flags.kv_heads : flags.heads, dim};
            shape.threads = threads;
            shape.type = parse_type(type, "type");
            shape.causal = mask != "full";
            if (mask.rfind("window:", 0) == 0) shape.window = parse_int(mask.substr(7), "window");
            if (mask != "full" && mask != "causal" && shape.window < 1)
              throw UserError(cat("mask '", mask, "' is not known; valid masks: full, causal, window:N, N from 1"));
            if (tokens < 1 || dim < 1 || dim > 1024 || threads < 1 || flags.heads < 1 || shape.key_heads < 1 ||
                flags.heads % shape.key_heads != 0)
              throw UserError("tokens, heads and threads are 1 or more, dims 1 to 1024, and kv-heads divide heads");
            shapes.push_back(shape);
          }
  return shapes;
}

void run(const BenchFlags& flags) {
  if (flags.rounds < 1) throw UserError("give 1 round or more");
  Progress progress("starting");
  nlohmann::json report{{"level", cpu::level().name}, {"rounds", flags.rounds}, {"results", nlohmann::json::array()}};
  const std::vector<Shape> shapes = shapes_of(flags);
  if (!flags.json)
    std::cout
        << "level " << report["level"].get<std::string>() << ", " << flags.heads << " heads; medians of "
        << flags.rounds << " rounds in turns; GF/s of this kernel, its share of the rate of\n"
        << "a matrix product of that type, how many times faster than PyTorch it is, and the share of packing\n\n";
  for (size_t i = 0; i < shapes.size(); ++i) {
    progress.show(cat("shape ", i + 1, " of ", shapes.size()));
    const nlohmann::json& r = report["results"].emplace_back(measure(shapes[i], flags.rounds));
    if (flags.json) continue;
    const auto pass = [&](const char* name) {
      const nlohmann::json& p = r[name];
      return cat(name, " ", fixed(p["ms"], 1), " ms ", fixed(p["gflops"], 0), " GF/s ",
                 fixed(100 * p["share_of_gemm"].get<double>(), 0), "% x ", fixed(p["ratio"], 2), " packing ",
                 fixed(100 * p["packing_share"].get<double>(), 1), "%");
    };
    std::cout << cat(r["type"].get<std::string>(), " ", r["mask"].get<std::string>(), " tokens ", r["tokens"], " dim ",
                     r["dim"], " threads ", r["threads"], ":  ", pass("forward"), "   ", pass("backward"))
              << std::endl;
  }
  if (flags.json) std::cout << report.dump(2) << "\n";
}

struct AgreeFlags {
  CommFlags comm;
  int ranks = 16, rounds = 200;
  CLI::Option* ranks_option = nullptr;
  bool json = false;
};

// How long all ranks take to agree on something small, which they do several times in a step.
void run_agree(AgreeFlags& flags) {
  ProcessWorld* const processes = flags.comm.open();
  set_ranks(flags.ranks, *flags.ranks_option, processes);
  if (flags.rounds < 1) throw UserError("give 1 round or more");
  const std::shared_ptr<World> shared = world_of(processes, flags.ranks);
  World& world = *shared;
  std::vector<double> times;
  world.run(0, [&](const std::shared_ptr<Group>& group) {
    for (int round = -10; round < flags.rounds; ++round) {
      group->control().barrier();
      const double ms = milliseconds([&] { group->control().agree([] {}); });
      if (round >= 0 && group->rank() == 0) times.push_back(ms);
    }
  });
  if (world.first() != 0) return;
  const Spread spread_ms = spread(times);
  const std::string comm = processes ? "gloo" : "local";
  if (flags.json)
    std::cout << nlohmann::json{{"ranks", flags.ranks},
                                {"comm", comm},
                                {"ms", spread_ms.median},
                                {"best_ms", spread_ms.min}}
                     .dump(2)
              << "\n";
  else
    std::cout << flags.ranks << " ranks (" << comm << ") agree in " << fixed(spread_ms.median, 2) << " ms, at best "
              << fixed(spread_ms.min, 2) << "; median of " << flags.rounds << "\n";
}

void add_agree(CLI::App& bench) {
  auto flags = std::make_shared<AgreeFlags>();
  CLI::App* command = bench.add_subcommand("agree", "How long ranks take to agree on something small");
  flags->ranks_option = command->add_option("--ranks", flags->ranks, "Ranks")->capture_default_str();
  flags->ranks_option->check(CLI::Range(1, 4096));
  command->add_option("--rounds", flags->rounds, "Timed rounds")->capture_default_str();
  command->add_flag("--json", flags->json, "Print JSON");
  flags->comm.add_to(*command);
  command->footer("Example: startrail launch --processes 16 -- bench agree");
  command->callback([flags] { run_agree(*flags); });
}

}  // namespace

void add_bench(CLI::App& app) {
  CLI::App* bench = app.add_subcommand("bench", "Measure parts of StarTrail against what they replace");
  bench->require_subcommand(1);
  add_agree(*bench);
  auto flags = std::make_shared<BenchFlags>();
  CLI::App* command = bench->add_subcommand("kernel", "The attention kernel in turns with PyTorch's, on one rank");
  command->add_option("--tokens", flags->tokens, "Lengths")->delimiter(',')->capture_default_str();
  command->add_option("--dims", flags->dims, "Widths of a head")->delimiter(',')->capture_default_str();
  command->add_option("--types", flags->types, "float32, bfloat16")->delimiter(',')->capture_default_str();
  command->add_option("--masks", flags->masks, "causal, full, window:N")->delimiter(',')->capture_default_str();
  command->add_option("--threads", flags->threads, "Thread counts")->delimiter(',')->capture_default_str();
  command->add_option("--heads", flags->heads, "Heads")->capture_default_str();
  command->add_option("--kv-heads", flags->kv_heads, "Key/value heads; 0: as many as heads")->capture_default_str();
  command->add_option("--rounds", flags->rounds, "Timed rounds of each")->capture_default_str();
  command->add_flag("--json", flags->json, "Print JSON");
  command->footer(
      "Examples:\n"
      "  startrail bench kernel --tokens 4096,16384 --types bfloat16,float32 --json\n"
      "  STARTRAIL_ISA=portable startrail bench kernel --tokens 1024\n"
      "PyTorch's bfloat16 attention is very slow on CPUs without AVX-512 BF16: there bfloat16 is not a default.");
  flags->comm.add_to(*command);
  command->callback([flags] {
    ProcessWorld* const processes = flags->comm.open();
    if (!processes) return run(*flags);
    // On rank 0's host; the others wait, so that they take nothing from it.
    processes->run(0, [&](const std::shared_ptr<Group>& group) {
      if (group->rank() == 0) run(*flags);
    });
  });
}

}  // namespace startrail::cli

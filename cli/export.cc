// startrail export: a checkpoint as a folder that others load.
#include <CLI/CLI.hpp>
#include <filesystem>
#include <iostream>
#include <variant>

#include "cli/command.h"
#include "cli/full_disk.h"
#include "cli/model_flags.h"
#include "cli/shape.h"
#include "cli/world.h"
#include "startrail/train/loop/checkpoint.h"

namespace startrail::cli {
namespace {

namespace fs = std::filesystem;

struct ExportFlags {
  std::string checkpoint, out, dtype = "float32";
  bool last = false;
};

void run_export(const ExportFlags& flags) {
  const fs::path folder = model_folder(flags.checkpoint);
  const auto model = load_model(folder, at::kFloat, which(flags.last));
  const ModelConfig config = read_config(folder);
  const Companions companions = std::holds_alternative<LlamaConfig>(config) ? make_companions(folder) : Companions{};
  const std::string file = advise_on_room(
      "make room, such as by deleting older checkpoints or models, or give another --out; nothing of it was left there",
      [&] { return export_model(*model, flags.out, parse_type(flags.dtype, "dtype"), companions); });
  const auto* dit = std::get_if<DitConfig>(&config);
  std::cout << flags.out << ": config.json" << (companions.files.contains("tokenizer.json") ? ", the tokenizer" : "")
            << " and " << file << " (" << flags.dtype << "), for "
            << (!dit ? cat("transformers' ", llama_class(std::get<LlamaConfig>(config)), ".from_pretrained")
                : dit->is_plain() && dit->objective == "flow" ? "diffusers' DiTTransformer2DModel.from_pretrained (it "
                                                                "predicts a velocity: use a flow-matching scheduler)"
                : dit->is_plain()                             ? "diffusers' DiTTransformer2DModel.from_pretrained"
                                                              : "StarTrail only: diffusers has no such form of a DiT")
            << "\n";
}

}  // namespace

void add_export(CLI::App& app) {
  auto flags = std::make_shared<ExportFlags>();
  CLI::App* command =
      app.add_subcommand("export", "Write a checkpoint as a folder that transformers or diffusers loads");
  command->add_option("--checkpoint", flags->checkpoint, kCheckpointHelp)->required()->type_name("FOLDER");
  command->add_option("--out", flags->out, "A new folder")->required()->type_name("FOLDER");
  command->add_option("--dtype", flags->dtype, "float32 or bfloat16")->capture_default_str();
  command->add_flag("--last", flags->last, kLastHelp);
  command->footer("Example: startrail export --checkpoint runs/gpt --out my-model");
  command->callback([flags] {
    refuse_many("export");
    run_export(*flags);
  });
}

}  // namespace startrail::cli

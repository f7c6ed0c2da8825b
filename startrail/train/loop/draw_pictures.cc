#include "startrail/train/loop/draw_pictures.h"

#include <ATen/ATen.h>

#include "startrail/base/error.h"
#include "startrail/run/comm/world.h"
#include "startrail/train/data/pictures/image_file.h"
#include "startrail/train/data/pictures/picture_grid.h"
#include "startrail/train/loop/checkpoint.h"
#include "startrail/train/model/picture_classes.h"

namespace startrail {

Drawing make_drawing(const DrawingOptions& given) {
  const ModelConfig model = read_config(given.folder);
  if (!std::holds_alternative<DitConfig>(model))
    throw UserError(cat(given.folder.string(), " holds a GPT, which writes text: this is for a DiT"));
  const DitConfig& shape = std::get<DitConfig>(model);
  if (given.count < 1 || given.count > 1'000'000)
    throw UserError(cat("--count ", given.count, " must be 1 to 1000000"));
  Drawing drawing{.folder = given.folder,
                  .shape = shape,
                  .classes = given.classes.empty() ? usual_classes(shape) : parse_classes(given.classes, shape),
                  .options = {.labels = {},
                              .steps = given.steps,
                              .guidance = guidance_of(given.guidance, shape),
                              .seed = given.seed},
                  .attention = attention_options(given.sharing, shape, shape.tokens()),
                  .type = given.type,
                  .which = given.which,
                  .threads = given.sharing.threads};
  for (int64_t one : drawing.classes)
    drawing.options.labels.insert(drawing.options.labels.end(), static_cast<size_t>(given.count), one);
  sampling_levels(shape.objective, given.steps);  // throws for a number of steps that cannot be
  return drawing;
}

double drawing_work(const Drawing& drawing) {
  const DitConfig& shape = drawing.shape;
  const auto tokens = static_cast<double>(shape.tokens()), parameters = static_cast<double>(shape.parameters());
  const double pass = 2 * parameters * tokens + 4 * tokens * tokens * static_cast<double>(shape.layers * shape.dim());
  const int passes = drawing.options.guidance != 1 && shape.classes > 0 ? 2 : 1;
  return pass * passes * static_cast<double>(drawing.options.steps) *
         static_cast<double>(drawing.options.labels.size());
}

at::Tensor draw_pictures(const Drawing& drawing, const std::function<void(double)>& on_step, World* processes) {
  const auto model = load_dit(drawing.folder, drawing.type, drawing.which);
  const std::shared_ptr<World> shared = world_of(processes, drawing.attention.grid.ranks());
  World& world = *shared;
  world.compare({{"model", config_text(*model, drawing.type)},
                 {"weights", weights_fingerprint(drawing.folder)},
                 {"grid", to_text(drawing.attention.grid)},
                 {"pictures", cat(join(drawing.options.labels, " "), " in ", drawing.options.steps, " steps, guidance ",
                                  drawing.options.guidance, ", seed ", drawing.options.seed)},
                 {"dtype", cat(drawing.type)}});
  at::Tensor pictures;
  world.run(drawing.threads, [&](const std::shared_ptr<Group>& group) {
    const bool tells = group->rank() == 0;
    const at::Tensor drawn =
        draw(*model, drawing.options, drawing.attention, group, tells ? on_step : std::function<void(double)>());
    if (tells) pictures = drawn;
  });
  if (!pictures.defined()) return pictures;
  const double guidance = drawing.options.guidance;
  if (!at::isfinite(pictures).all().item<bool>())
    throw UserError(cat("the numbers that were drawn are not finite",
                        guidance == 1 ? ": use another checkpoint" : cat(": lower --guidance ", guidance)));
  return pictures;
}

void check_picture_file(const std::filesystem::path& file, const DitConfig& shape) {
  const std::string kind = file.extension();
  if (kind != ".png" && kind != ".safetensors")
    throw UserError(cat("--out ", file.string(), " must end in .png, or in .safetensors for the numbers themselves"));
  if (kind == ".png" && shape.channels != 1 && shape.channels != 3)
    throw UserError(cat("this model draws latents of ", shape.channels, " channels, which are no pictures yet: ",
                        "give --out a name that ends in .safetensors, and decode them"));
}

void write_pictures(const std::filesystem::path& file, const at::Tensor& pictures, int64_t columns) {
  if (file.extension() == ".png") {
    write_png(file, picture_grid(pictures, columns));
    return;
  }
  const int64_t begin = make_tensor_file(file, {{"pictures", at::kFloat, pictures.sizes().vec()}});
  write_at(file, begin, pictures.contiguous());
}

}  // namespace startrail

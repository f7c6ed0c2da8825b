// Pictures from a DiT's folder, drawn by any grid of ranks and written as one image or as numbers. diffusion.h does the
// work; here is what is asked for and whether it can be.
#pragma once

#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "startrail/run/comm/world.h"
#include "startrail/train/loop/config.h"
#include "startrail/train/model/diffusion.h"
#include "startrail/train/model/weights.h"

namespace startrail {

struct DrawingOptions {
  std::filesystem::path folder = {};  // of the model: model_folder(...)
  std::string classes = {};           // names and numbers, "cat,3"; "": the first 8 that had data
  int64_t count = 4;                  // pictures of each class
  int64_t steps = 50;
  std::optional<double> guidance = {};  // nothing: guidance_of decides
  uint64_t seed = 1;
  at::ScalarType type = at::kFloat;
  Which which = Which::mean;
  Sharing sharing = {};
};

// What it comes to.
struct Drawing {
  std::filesystem::path folder;
  DitConfig shape;
  std::vector<int64_t> classes;
  DrawOptions options;
  AttentionOptions attention;
  at::ScalarType type = at::kFloat;
  Which which = Which::mean;
  int threads = 1;
};

// Checks everything and reads no weights. UserError for what cannot be drawn.
Drawing make_drawing(const DrawingOptions& options);

// What it takes on one rank, in floating-point operations.
double drawing_work(const Drawing& drawing);

// [pictures, channels, frames, height, width] float32: for each class `count`, one after the other. Local
// ranks, or those of `processes`, where only rank 0's has the pictures.
// `on_step`, called from rank 0's thread, is told the share that is done. UserError when numbers are not finite.
at::Tensor draw_pictures(const Drawing& drawing, const std::function<void(double)>& on_step = {},
                         World* processes = nullptr);

// UserError when a file of this name cannot hold such pictures: .png for gray or coloured ones, .safetensors for the
// numbers of any.
void check_picture_file(const std::filesystem::path& file, const DitConfig& shape);

// A .png with `columns` pictures in a row, or a .safetensors file with the tensor "pictures".
void write_pictures(const std::filesystem::path& file, const at::Tensor& pictures, int64_t columns);

}  // namespace startrail

// Latents on disk: what an encoder made of pictures or videos, as float arrays in .npy and .safetensors files. Used by
// pictures.cc. Of a file only the rows asked for are read.
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "startrail/train/data/pictures/picture_files.h"
#include "startrail/train/data/pictures/pictures.h"

namespace startrail {

// Where one latent lies in its file.
struct Latent {
  std::string tensor;  // its name in a .safetensors file, "" in a .npy file
  at::ScalarType type = at::kFloat;
  int64_t offset = 0;                // of its first number, in bytes
  std::array<int64_t, 4> extents{};  // channels, frames, height, width
};

// The latents of a file: one of a .npy file, those of a .safetensors file in the order of their names. Reads headers
// only. UserError when it is damaged or a latent does not fit: [channels, height, width] or [channels, frames, height,
// width] of floats, with the shape's channels and in the other extents at least as large as the shape.
std::vector<Latent> list_latents(const std::filesystem::path& file, PictureKind kind, const PictureShape& shape);

// How messages call it: the file, and the tensor in it.
std::string latent_name(const std::filesystem::path& file, const Latent& latent);

struct LatentPlace {
  std::filesystem::path file;
  const Latent& latent;
  int64_t bytes, time_ns;  // of the file when it was listed
};

// The band of the latent's middle, [channels, frames, rows, width] float32. UserError when the file changed since or
// shrinks meanwhile, or when a number is NaN or beyond a million after it was multiplied by `scale`.
at::Tensor read_latent(const LatentPlace& place, const PictureShape& shape, const PictureBand& band, double scale);

}  // namespace startrail

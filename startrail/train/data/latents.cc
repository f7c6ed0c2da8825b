#include "startrail/train/data/latents.h"

#include <ATen/ATen.h>

#include <cstring>

#include "startrail/base/error.h"
#include "startrail/train/data/npy.h"
#include "startrail/train/mapped_file.h"
#include "startrail/train/tensor_file.h"

namespace startrail {
namespace {

// A latent of this shape, or a UserError when it is not what is wanted.
Latent make_latent(const std::filesystem::path& file, Latent latent, const std::vector<int64_t>& shape,
                   const PictureShape& wanted) {
  const auto fail = [&](const auto&... what) { throw UserError(cat(latent_name(file, latent), " ", what...)); };
  if (latent.type != at::kHalf && latent.type != at::kBFloat16 && latent.type != at::kFloat &&
      latent.type != at::kDouble)
    fail("holds numbers of type ", latent.type, ": latents are floats of 16, 32 or 64 bits");
  if (shape.size() != 3 && shape.size() != 4)
    fail("has the shape [", join(shape), "]: latents are [channels, height, width] or [channels, frames, height, ",
         "width]");
  latent.extents = {shape[0], shape.size() == 4 ? shape[1] : 1, shape[shape.size() - 2], shape.back()};
  const auto [channels, frames, height, width] = latent.extents;
  if (channels != wanted.channels)
    fail("has ", channels, " channels, but the shape has ", wanted.channels, ": set its channels to ", channels);
  if (frames < wanted.frames || height < wanted.height || width < wanted.width)
    fail("has ", frames, " x ", height, " x ", width, " frames, rows and columns, fewer than the shape's ",
         wanted.frames, " x ", wanted.height, " x ", wanted.width, ": make the shape smaller or leave the file out");
  return latent;
}

}  // namespace

std::string latent_name(const std::filesystem::path& file, const Latent& latent) {
  return latent.tensor.empty() ? file.string() : cat(file.string(), ": ", latent.tensor);
}

std::vector<Latent> list_latents(const std::filesystem::path& file, PictureKind kind, const PictureShape& shape) {
  std::vector<Latent> latents;
  if (kind == PictureKind::npy) {
    const MappedFile mapped(file);
    const NpyHeader header = parse_npy({mapped.data(), mapped.size()}, file.string());
    latents.push_back(make_latent(file, {"", header.type, header.offset, {}}, header.shape, shape));
    return latents;
  }
  const TensorFile opened = read_tensors(file);
  for (const auto& [name, tensor] : opened.tensors)
    latents.push_back(
        make_latent(file, {name, tensor.scalar_type(), opened.offsets.at(name), {}}, tensor.sizes().vec(), shape));
  if (latents.empty()) throw UserError(cat(file.string(), " holds no tensors: replace or remove it"));
  return latents;
}

at::Tensor read_latent(const LatentPlace& place, const PictureShape& shape, const PictureBand& band, double scale) {
  const Latent& latent = place.latent;
  const MappedFile file(place.file);
  if (static_cast<int64_t>(file.size()) != place.bytes || file.time_ns() != place.time_ns)
    throw UserError(cat(place.file.string(), " changed while in use: restore it or start again"));
  const auto [channels, all_frames, all_rows, all_columns] = latent.extents;
  const int64_t frame = band.first_frame + (all_frames - shape.frames) / 2;
  const int64_t row = band.first_row + (all_rows - shape.height) / 2;
  const int64_t column = (all_columns - shape.width) / 2;
  const int64_t frames = band.end_frame - band.first_frame, rows = band.end_row - band.first_row;
  // Copied as bytes, because nothing says that numbers in a file are aligned.
  const at::Tensor raw = at::empty({channels, frames, rows, shape.width}, at::TensorOptions(latent.type));
  const auto number = static_cast<int64_t>(raw.element_size()), row_bytes = shape.width * number;
  auto* out = static_cast<char*>(raw.data_ptr());
  for (int64_t c = 0; c < channels; ++c)
    for (int64_t t = 0; t < frames; ++t)
      for (int64_t y = 0; y < rows; ++y, out += row_bytes) {
        const int64_t from = ((c * all_frames + frame + t) * all_rows + row + y) * all_columns + column;
        std::memcpy(out, file.data() + latent.offset + from * number, static_cast<size_t>(row_bytes));
      }
  at::Tensor values = raw.to(at::kFloat);
  if (scale != 1) values = values.mul(scale);
  if (!at::isfinite(values).all().item<bool>())
    throw UserError(
        cat(latent_name(place.file, latent), " holds numbers that are NaN or beyond float32: repair or remove it"));
  return values;
}

}  // namespace startrail

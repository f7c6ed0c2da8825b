#include "startrail/train/data/pictures/latents.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "startrail/base/error.h"
#include "startrail/base/file.h"
#include "startrail/train/data/pictures/npy.h"
#include "startrail/train/store/tensor_file.h"

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
    fail("has ", channels, " channels, but the model has ", wanted.channels, ": set model.channels=", channels);
  if (frames > 1 && wanted.frames == 1)
    fail("is a video of ", frames, " frames, but the model has one: set model.frames=", frames, " or fewer");
  if (frames < wanted.frames || height < wanted.height || width < wanted.width)
    fail("has ", frames, " x ", height, " x ", width, " frames, rows and columns, fewer than the model's ",
         wanted.frames, " x ", wanted.height, " x ", wanted.width, ": make the model's smaller or leave the file out");
  return latent;
}

// Numbers beyond it are no latents but damage, and would make a step's loss infinite.
constexpr float kLargest = 1e6;

// Numbers times the scale, in float32. Returns whether all are fit to be used.
template <class Number>
bool convert(const char* bytes, int64_t count, float scale, float* out) {
  bool fit = true;
  for (int64_t i = 0; i < count; ++i) {
    Number number;  // nothing says that numbers in a file are aligned
    std::memcpy(&number, bytes + i * static_cast<int64_t>(sizeof number), sizeof number);
    out[i] = static_cast<float>(number) * scale;
    fit &= std::abs(out[i]) <= kLargest;  // no NaN is
  }
  return fit;
}

bool convert(at::ScalarType type, const char* bytes, int64_t count, double scale, float* out) {
  const auto factor = static_cast<float>(scale);
  if (type == at::kHalf) return convert<at::Half>(bytes, count, factor, out);
  if (type == at::kBFloat16) return convert<at::BFloat16>(bytes, count, factor, out);
  if (type == at::kDouble) return convert<double>(bytes, count, factor, out);
  return convert<float>(bytes, count, factor, out);
}

}  // namespace

std::string latent_name(const std::filesystem::path& file, const Latent& latent) {
  return latent.tensor.empty() ? file.string() : cat(file.string(), ": ", latent.tensor);
}

std::vector<Latent> list_latents(const std::filesystem::path& file, PictureKind kind, const PictureShape& shape) {
  std::vector<Latent> latents;
  if (kind == PictureKind::npy) {
    const OpenFile opened(file.string());
    const auto size = static_cast<size_t>(opened.state().bytes);
    std::string start(std::min(size, kLargestNpyHeader + 12), '\0');
    start.resize(opened.read(0, start.data(), start.size()));
    const NpyHeader header = parse_npy(start, size, file.string());
    latents.push_back(make_latent(file, {"", header.type, header.offset, {}}, header.shape, shape));
    return latents;
  }
  for (const auto& [name, place] : list_tensors(file))
    latents.push_back(make_latent(file, {name, place.type, place.offset, {}}, place.shape, shape));
  if (latents.empty()) throw UserError(cat(file.string(), " holds no tensors: replace or remove it"));
  return latents;
}

at::Tensor read_latent(const LatentPlace& place, const PictureShape& shape, const PictureBand& band, double scale) {
  const Latent& latent = place.latent;
  const OpenFile file(place.file.string());
  if (const auto [bytes, time_ns] = file.state(); bytes != place.bytes || time_ns != place.time_ns)
    throw UserError(cat(place.file.string(), " changed while in use: restore it or start again"));
  const auto [channels, all_frames, all_rows, all_columns] = latent.extents;
  const int64_t frame = band.first_frame + (all_frames - shape.frames) / 2;
  const int64_t row = band.first_row + (all_rows - shape.height) / 2;
  const int64_t column = (all_columns - shape.width) / 2;
  const int64_t frames = band.end_frame - band.first_frame, rows = band.end_row - band.first_row;
  at::Tensor result = at::empty({channels, frames, rows, shape.width});
  const auto number = static_cast<int64_t>(c10::elementSize(latent.type));
  auto* out = result.mutable_data_ptr<float>();
  // The rows of one channel and frame, with what lies between them when the columns are cropped.
  std::vector<char> part(rows == 0 ? 0 : static_cast<size_t>(((rows - 1) * all_columns + shape.width) * number));
  bool fit = true;
  for (int64_t c = 0; c < channels; ++c)
    for (int64_t t = 0; t < frames; ++t) {
      const int64_t from = ((c * all_frames + frame + t) * all_rows + row) * all_columns + column;
      if (file.read(latent.offset + from * number, part.data(), part.size()) != part.size())
        throw UserError(cat(place.file.string(), " shrank while it was read: restore it or start again"));
      for (int64_t y = 0; y < rows; ++y, out += shape.width)
        fit &= convert(latent.type, part.data() + y * all_columns * number, shape.width, scale, out);
    }
  if (!fit)
    throw UserError(cat(latent_name(place.file, latent),
                        " holds numbers that are NaN or beyond a million (times data.scale): repair or remove it"));
  return result;
}

}  // namespace startrail

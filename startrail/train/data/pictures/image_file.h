// PNG and JPEG files: decoded row by row, so that reading ends where the caller's need does and memory does not grow
// with the picture (interlaced PNG and progressive JPEG are held whole); and PNG files written. Used by pictures.cc.
// Colours are taken as the file has them: no gamma, no colour profiles, and no rotation by EXIF, which sets for
// training have applied long before.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>

#include <ATen/core/Tensor.h>

namespace startrail {

enum class ImageFormat { png, jpeg };

struct ImageHeader {
  int64_t width = 0, height = 0;
  int64_t channels = 3;  // 1: gray
};

constexpr int64_t kLargestSide = 65'535;         // of a picture; what a header says beyond it is not believed
constexpr int64_t kLargestHeld = 1'000'000'000;  // bytes; of a picture that is held whole

// An open image. Not for several threads at once.
class ImageRows {
 public:
  virtual ~ImageRows() = default;
  virtual const ImageHeader& header() const = 0;
  // Row `row` as `width` x `channels` bytes, valid until the next call. Rows are asked for in ascending order; those
  // between are skipped. UserError when the file is damaged or truncated; of a JPEG, which has no checksums, damage
  // behind the last row asked for is not seen.
  virtual const uint8_t* read(int64_t row) = 0;
};

// Reads the header only. 16-bit and palette colours become 8-bit ones. UserError, naming the file, when it is empty, of
// another format, damaged, too large, has an alpha channel or has CMYK colours.
std::unique_ptr<ImageRows> open_image(const std::filesystem::path& file, ImageFormat format);

// Writes uint8 [height, width, 3], or [height, width, 1] for gray. UserError when it cannot be written,
// ClusterError when the disk is full (throw_file_error).
void write_png(const std::filesystem::path& file, const at::Tensor& pixels);

}  // namespace startrail

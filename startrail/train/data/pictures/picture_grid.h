// Drawn pictures as one image, for people to look at.
#pragma once

#include <ATen/core/Tensor.h>

namespace startrail {

// Pictures [count, channels, frames, height, width] from -1 to 1, `columns` in a row (the frames of a video beside each
// other), as pixels uint8 [height, width, channels].
at::Tensor picture_grid(const at::Tensor& pictures, int64_t columns);

}  // namespace startrail

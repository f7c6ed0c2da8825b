#include "startrail/train/data/pictures/picture_grid.h"

#include <ATen/ATen.h>
#include <algorithm>

namespace startrail {

at::Tensor picture_grid(const at::Tensor& pictures, int64_t columns) {
  constexpr int64_t kGap = 2;
  const int64_t count = pictures.size(0), channels = pictures.size(1), height = pictures.size(3),
                width = pictures.size(2) * pictures.size(4);
  const int64_t across = std::min(count, columns), down = (count + columns - 1) / columns;
  const at::Tensor bytes = ((pictures.clamp(-1, 1) + 1) * 127.5).round_().to(at::kByte);
  at::Tensor grid = at::full({down * (height + kGap) - kGap, across * (width + kGap) - kGap, channels}, 255, at::kByte);
  for (int64_t i = 0; i < count; ++i)
    grid.narrow(0, i / columns * (height + kGap), height)
        .narrow(1, i % columns * (width + kGap), width)
        .copy_(bytes[i].permute({2, 1, 3, 0}).reshape({height, width, channels}));
  return grid;
}

}  // namespace startrail

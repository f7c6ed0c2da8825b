// Pictures without files: circles, crosses, squares and triangles of equal area in random colours, places, sizes and
// rotations, for trying out and testing a model. Used by pictures.cc.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "startrail/train/data/pictures/pictures.h"

namespace startrail {

// circle, cross, square, triangle; picture `index` shows that of index % 4.
const std::vector<std::string>& shape_classes();

// The band of picture `index`, [channels (1 or 3), frames, rows, width] float32 from -1 to 1. Depends on nothing but
// its arguments. The shape is inside of the picture; in a video it moves along a straight line.
at::Tensor draw_shape(uint64_t seed, int64_t index, const PictureShape& shape, const PictureBand& band);

}  // namespace startrail

#include "startrail/train/recognise.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "startrail/base/testing.h"

namespace startrail {
namespace {

TEST(Recogniser, TellsShapesApartAndNoiseFromNothing) {
  PicturesOptions options;
  options.path = "shapes";
  options.generated = 4000;
  const auto shapes = open_pictures(options);
  const Recogniser recogniser(*shapes, options.shape, 400, 150, 3);
  EXPECT_GT(recogniser.accuracy(), 0.9);
  const Recogniser untrained(*shapes, options.shape, 400, 0, 3);
  EXPECT_LT(untrained.accuracy(), 0.6);
  EXPECT_EQ(recogniser.classes_of(at::zeros({5, 3, 32, 32})).sizes(), at::IntArrayRef({5}));
  EXPECT_NE(error_of([&] { Recogniser(*shapes, options.shape, 4000, 1, 3); }).find("too few"), std::string::npos);
}

}  // namespace
}  // namespace startrail

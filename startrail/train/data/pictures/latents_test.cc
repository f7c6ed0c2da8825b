#include "startrail/train/data/pictures/latents.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <limits>

#include "startrail/base/testing.h"
#include "startrail/base/threads.h"
#include "startrail/train/data/pictures/picture_testing.h"
#include "startrail/train/store/tensor_file.h"

namespace startrail {
namespace {

namespace fs = std::filesystem;

PicturesOptions options_for(const std::string& path, const PictureShape& shape) {
  PicturesOptions options;
  options.path = path;
  options.shape = shape;
  return options;
}

std::string refusal(const std::string& path, const PictureShape& shape) {
  return without_advice(error_of([&] { open_pictures(options_for(path, shape)); }));
}

at::Tensor read(const Pictures& set, int64_t index, const PictureShape& shape) {
  return set.read(index, {0, shape.frames, 0, shape.height});
}

// Numbers that every type holds exactly.
at::Tensor numbers(at::IntArrayRef shape, at::ScalarType type = at::kFloat, int64_t start = 0) {
  return (at::arange(c10::multiply_integers(shape)) + start).remainder(255).sub(100).div(4).to(type).view(shape);
}

std::string write_npy(const TempFolder& folder, const std::string& name, const at::Tensor& values, int version = 1) {
  const at::Tensor dense = values.contiguous();
  const char* type = values.scalar_type() == at::kHalf ? "<f2" : values.scalar_type() == at::kFloat ? "<f4" : "<f8";
  return folder.write(name, npy_bytes(npy_dictionary(type, cat("(", join(values.sizes()), ")")),
                                      {static_cast<const char*>(dense.const_data_ptr()), dense.nbytes()}, version));
}

std::string write_safetensors(const TempFolder& folder, const std::string& name,
                              const std::vector<std::pair<std::string, at::Tensor>>& tensors) {
  const std::string file = folder.write(name, "");
  std::vector<NamedShape> shapes;
  for (const auto& [tensor, values] : tensors) shapes.push_back({tensor, values.scalar_type(), values.sizes().vec()});
  int64_t offset = make_tensor_file(file, shapes);
  for (const auto& [tensor, values] : tensors) {
    write_at(file, offset, values.contiguous());
    offset += static_cast<int64_t>(values.nbytes());
  }
  return file;
}

TEST(Latents, ReadsNpyOfAllVersionsAndTypes) {
  const TempFolder folder;
  const PictureShape shape{4, 1, 3, 5};
  int64_t count = 0;
  for (const at::ScalarType type : {at::kHalf, at::kFloat, at::kDouble})
    for (const int version : {1, 2, 3}) {
      write_npy(folder, cat("x/", count, ".npy"), numbers({4, 3, 5}, type, count), version);
      ++count;
    }
  write_npy(folder, "y/a.NPY", numbers({4, 1, 3, 5}));
  const auto set = open_pictures(options_for(folder.path(), shape));
  EXPECT_EQ(set->describe(), "10 npy latents in 2 classes");
  EXPECT_EQ(set->classes(), (std::vector<std::string>{"x", "y"}));
  for (int64_t i = 0; i < count; ++i)
    EXPECT_TRUE(at::equal(read(*set, i, shape), numbers({4, 1, 3, 5}, at::kFloat, i))) << i;
  EXPECT_TRUE(at::equal(read(*set, 9, shape), numbers({4, 1, 3, 5})));
  EXPECT_EQ(set->label(9), 1);
  EXPECT_EQ(set->name(9), folder.path("y/a.NPY"));
}

TEST(Latents, ASafetensorsFileHoldsMany) {
  const TempFolder folder;
  const PictureShape shape{2, 1, 3, 4};
  write_safetensors(folder, "b/one.safetensors",
                    {{"z", numbers({2, 3, 4}, at::kHalf, 1)}, {"a", numbers({2, 3, 4}, at::kDouble, 2)}});
  write_safetensors(folder, "a/two.safetensors",
                    {{"m", numbers({2, 1, 3, 4}, at::kBFloat16, 3)}, {"k", numbers({2, 3, 4}, at::kFloat, 4)}});
  write_npy(folder, "a/three.npy", numbers({2, 3, 4}, at::kFloat, 5));
  const auto set = open_pictures(options_for(folder.path(), shape));
  EXPECT_EQ(set->describe(), "1 npy and 4 safetensors latents in 2 classes");
  ASSERT_EQ(set->count(), 5);
  const int64_t starts[] = {5, 4, 3, 2, 1}, labels[] = {0, 0, 0, 1, 1};
  for (int64_t i = 0; i < 5; ++i) {
    EXPECT_TRUE(at::equal(read(*set, i, shape), numbers({2, 1, 3, 4}, at::kFloat, starts[i]))) << i;
    EXPECT_EQ(set->label(i), labels[i]);
  }
  EXPECT_EQ(set->name(0), folder.path("a/three.npy"));
  EXPECT_EQ(set->name(4), folder.path("b/one.safetensors") + ": z");
}

TEST(Latents, LargerOnesAreCroppedInTheMiddle) {
  const TempFolder folder;
  const PictureShape shape{3, 4, 5, 6};
  const at::Tensor video = numbers({3, 7, 10, 9}), exact = numbers({3, 4, 5, 6}, at::kFloat, 1);
  write_npy(folder, "a.npy", video);
  write_safetensors(folder, "b.safetensors", {{"v", video}, {"w", exact}});
  PicturesOptions options = options_for(folder.path(), shape);
  options.scale = 0.5;
  const auto set = open_pictures(options);
  EXPECT_EQ(set->describe(), "1 npy and 2 safetensors videos in 1 class");
  const at::Tensor middle = video.slice(1, 1, 5).slice(2, 2, 7).slice(3, 1, 7) * 0.5;
  for (const auto& [index, expected] : {std::pair{0, middle}, {1, middle}, {2, exact * 0.5}}) {
    EXPECT_TRUE(at::equal(read(*set, index, shape), expected)) << index;
    for (int64_t frame = 0; frame < 4; ++frame)
      for (int64_t row = 0; row < 5; ++row)
        for (int64_t end = row; end <= 5; ++end)
          EXPECT_TRUE(
              at::equal(set->read(index, {frame, 4, row, end}), expected.slice(1, frame, 4).slice(2, row, end)));
  }
}

TEST(Latents, RefusesWhatDoesNotFit) {
  const TempFolder folder;
  std::string file = write_npy(folder, "a.npy", numbers({4, 6, 8}));
  const std::string sizes = file + " has 1 x 6 x 8 frames, rows and columns, fewer than the model's ";
  const std::string advice = ": make the model's smaller or leave the file out";
  EXPECT_EQ(refusal(folder.path(), {4, 1, 7, 8}), sizes + "1 x 7 x 8" + advice);
  EXPECT_EQ(refusal(folder.path(), {4, 1, 6, 9}), sizes + "1 x 6 x 9" + advice);
  EXPECT_EQ(refusal(folder.path(), {4, 2, 6, 8}), sizes + "2 x 6 x 8" + advice);
  EXPECT_EQ(refusal(folder.path(), {3, 1, 6, 8}), file + " has 4 channels, but the model has 3: set model.channels=4");
  PicturesOptions options = options_for(folder.path(), {4, 1, 6, 8});
  options.fit = "resize";
  EXPECT_EQ(error_of([&] { open_pictures(options); }),
            folder.path() + " has latents, which cannot be resized: set data.fit=crop");
  write_npy(folder, "a.npy", numbers({4, 3, 6, 8}));
  EXPECT_EQ(refusal(folder.path(), {4, 1, 6, 8}),
            file + " is a video of 3 frames, but the model has one: set model.frames=3 or fewer");
  write_npy(folder, "a.npy", numbers({6, 8}));
  EXPECT_EQ(refusal(folder.path(), {4, 1, 6, 8}),
            file + " has the shape [6, 8]: latents are [channels, height, width] or [channels, frames, height, width]");
  fs::remove(file);
  file = write_safetensors(folder, "b.safetensors", {{"x", at::zeros({4, 6, 8}, at::kInt)}});
  EXPECT_EQ(refusal(folder.path(), {4, 1, 6, 8}),
            file + ": x holds numbers of type Int: latents are floats of 16, 32 or 64 bits");
  write_safetensors(folder, "b.safetensors", {});
  EXPECT_EQ(refusal(folder.path(), {4, 1, 6, 8}), file + " holds no tensors: replace or remove it");
}

TEST(Latents, RefusesOrSkipsDamagedFiles) {
  const TempFolder folder;
  const PictureShape shape{4, 1, 6, 8};
  write_npy(folder, "good.npy", numbers({4, 6, 8}));
  const std::string npy = write_npy(folder, "bad.npy", numbers({4, 6, 8}));
  fs::resize_file(npy, fs::file_size(npy) - 1);
  EXPECT_EQ(refusal(folder.path(), shape), npy + " is truncated: its shape (4, 6, 8) does not fit into 767 bytes");
  const std::string empty = folder.write("empty.safetensors", "");
  const std::string bad = write_safetensors(folder, "also.safetensors", {{"x", numbers({4, 6, 8})}});
  fs::resize_file(bad, fs::file_size(bad) - 1);
  EXPECT_TRUE(refusal(folder.path(), shape).starts_with(bad + " is not a whole safetensors file: "));
  PicturesOptions options = options_for(folder.path(), shape);
  options.skip_bad = true;
  EXPECT_EQ(open_pictures(options)->count(), 1);
  EXPECT_EQ(open_pictures(options)->skipped().size(), 3u);
}

TEST(Latents, AreTheDataWhenTheyAreMoreThanThePictures) {
  const TempFolder folder;
  const PictureShape shape{4, 1, 6, 8};
  for (int i = 0; i < 3; ++i) write_npy(folder, cat(i, ".npy"), numbers({4, 6, 8}));
  const std::string preview = folder.path("preview.png");  // larger than all of them
  write_test_png(preview, {.width = 300, .height = 300, .depth = 16});
  ASSERT_GT(fs::file_size(preview), 3 * fs::file_size(folder.path("0.npy")));
  EXPECT_EQ(refusal(folder.path(), shape), cat(preview, " is a picture, but most of ", folder.path(),
                                               " are latents: give a folder that has only one of them"));
}

TEST(Latents, EmptyFilesAreNamed) {
  const TempFolder npy, tensors;
  const std::string a = npy.write("a.npy", ""), b = tensors.write("b.safetensors", "");
  EXPECT_EQ(refusal(npy.path(), {4, 1, 6, 8}), a + " is empty: replace or remove it");
  EXPECT_EQ(refusal(tensors.path(), {4, 1, 6, 8}), b + " is not a whole safetensors file: it has only 0 bytes");
}

TEST(Latents, NumbersThatAreNoneAreFoundWhenRead) {
  const TempFolder folder;
  const PictureShape shape{1, 1, 3, 3};
  at::Tensor values = numbers({1, 3, 3});
  values[0][2][1] = std::numeric_limits<float>::quiet_NaN();
  const std::string npy = write_npy(folder, "a.npy", values);
  values[0][2][1] = -std::numeric_limits<float>::infinity();
  const std::string tensors = write_safetensors(folder, "b.safetensors", {{"x", values.to(at::kHalf)}});
  values = numbers({1, 3, 3}, at::kDouble);
  values[0][2][1] = 1e300;
  const std::string large = write_npy(folder, "c.npy", values);
  values[0][2][1] = -1.1e6;
  const std::string absurd = write_npy(folder, "d.npy", values);
  const auto set = open_pictures(options_for(folder.path(), shape));
  const std::string what = " holds numbers that are NaN or beyond a million (times data.scale): repair or remove it";
  EXPECT_EQ(error_of([&] { read(*set, 0, shape); }), npy + what);
  EXPECT_EQ(error_of([&] { read(*set, 1, shape); }), tensors + ": x" + what);
  EXPECT_EQ(error_of([&] { read(*set, 2, shape); }), large + what);
  EXPECT_EQ(error_of([&] { read(*set, 3, shape); }), absurd + what);
  for (int64_t i = 0; i < 4; ++i) set->read(i, {0, 1, 0, 2});  // the band above them is good
}

TEST(Latents, AChangedFileIsNotReadWithOldOffsets) {
  const TempFolder folder;
  const PictureShape shape{4, 1, 6, 8};
  const std::string file = write_npy(folder, "a.npy", numbers({4, 6, 8}));
  const auto set = open_pictures(options_for(folder.path(), shape));
  fs::resize_file(file, 200);
  EXPECT_EQ(error_of([&] { read(*set, 0, shape); }), file + " changed while in use: restore it or start again");
  fs::remove(file);
  EXPECT_EQ(error_of([&] { read(*set, 0, shape); }), file + " cannot be opened: No such file or directory");
}

// With a mapped file this ends the process.
TEST(Latents, AFileMayShrinkWhileItIsRead) {
  const TempFolder folder;
  const PictureShape shape{4, 1, 256, 256};
  const std::string file = write_npy(folder, "a.npy", numbers({4, 256, 256}));
  const auto set = open_pictures(options_for(folder.path(), shape));
  const auto size = fs::file_size(file);
  const auto time = fs::last_write_time(file);
  std::atomic<bool> done = false;
  run_threads(2, [&](int thread) {
    if (thread == 0) {
      for (int i = 0; i < 500; ++i) {
        const std::string error = error_of([&] { read(*set, 0, shape); });
        EXPECT_TRUE(error == "no error" || error.starts_with(file + " changed while in use: ") ||
                    error.starts_with(file + " shrank while it was read: "))
            << error;
      }
      done = true;
    }
    while (!done) {
      fs::resize_file(file, 200);
      fs::resize_file(file, size);
      fs::last_write_time(file, time);
    }
  });
}

TEST(Latents, TheFingerprintKnowsTheScale) {
  const TempFolder folder;
  write_npy(folder, "a.npy", numbers({4, 6, 8}));
  PicturesOptions options = options_for(folder.path(), {4, 1, 6, 8});
  const std::string before = open_pictures(options)->fingerprint();
  options.scale = 0.18215;
  EXPECT_NE(open_pictures(options)->fingerprint(), before);
}

}  // namespace
}  // namespace startrail

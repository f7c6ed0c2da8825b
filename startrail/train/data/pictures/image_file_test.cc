#include "startrail/train/data/pictures/image_file.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>

#include "startrail/base/testing.h"
#include "startrail/train/data/pictures/picture_testing.h"

namespace startrail {
namespace {

using Bytes = std::vector<uint8_t>;

ImageFormat format_of(const std::string& file) { return file.ends_with(".png") ? ImageFormat::png : ImageFormat::jpeg; }

// Rows [first, end), or all.
Bytes read(const std::string& file, int64_t first = 0, int64_t end = -1) {
  const auto image = open_image(file, format_of(file));
  const int64_t row_bytes = image->header().width * image->header().channels;
  Bytes all;
  for (int64_t row = first; row < (end < 0 ? image->header().height : end); ++row) {
    const uint8_t* bytes = image->read(row);
    all.insert(all.end(), bytes, bytes + row_bytes);
  }
  return all;
}

std::string refusal(const std::string& file) {
  const std::string error = error_of([&] { read(file); });
  return error.starts_with(file + " ") ? error.substr(file.size() + 1) : error;
}

// What `test` should be read as: 8 bits, palettes resolved.
Bytes expected_pixels(const TestPng& test) {
  Bytes pixels;
  for (int y = 0; y < test.height; ++y)
    for (int x = 0; x < test.width; ++x)
      for (int channel = 0; channel < test.channels(); ++channel) {
        const int value = test.sample(x, y, channel);
        if (test.colours == PNG_COLOR_TYPE_PALETTE) {
          const png_color colour = TestPng::palette(value);
          pixels.insert(pixels.end(), {colour.red, colour.green, colour.blue});
        } else {
          pixels.push_back(static_cast<uint8_t>(std::lround(value * 255.0 / ((1 << test.depth) - 1))));
        }
      }
  return pixels;
}

std::vector<TestPng> every_png() {
  std::vector<TestPng> tests;
  for (const bool interlaced : {false, true}) {
    for (const int depth : {1, 2, 4, 8, 16}) tests.push_back({13, 11, depth, PNG_COLOR_TYPE_GRAY, interlaced});
    for (const int depth : {1, 2, 4, 8}) tests.push_back({13, 11, depth, PNG_COLOR_TYPE_PALETTE, interlaced});
    for (const int depth : {8, 16}) tests.push_back({13, 11, depth, PNG_COLOR_TYPE_RGB, interlaced});
  }
  return tests;
}

std::string to_text(const TestPng& test) {
  return cat("depth ", test.depth, " colours ", test.colours, test.interlaced ? " interlaced" : "");
}

std::vector<TestJpeg> every_jpeg() {
  std::vector<TestJpeg> tests;
  for (const bool progressive : {false, true})
    for (const int restart_rows : {0, 1}) {
      for (const auto& [across, down] : {std::pair{1, 1}, {2, 1}, {1, 2}, {2, 2}, {4, 1}})
        tests.push_back({37, 43, JCS_RGB, JCS_YCbCr, across, down, progressive, restart_rows});
      tests.push_back({37, 43, JCS_RGB, JCS_RGB, 1, 1, progressive, restart_rows});
      tests.push_back({37, 43, JCS_GRAYSCALE, JCS_GRAYSCALE, 1, 1, progressive, restart_rows});
    }
  return tests;
}

std::string to_text(const TestJpeg& test) {
  return cat(test.channels(), " channels stored as ", test.stored, ", ", test.across, " x ", test.down,
             test.progressive ? " progressive" : "", " restart ", test.restart_rows);
}

TEST(ImageFile, WrittenPngsAreReadBack) {
  const TempFolder folder;
  const std::string file = folder.path("a.png");
  for (const int64_t channels : {1, 3}) {
    const at::Tensor pixels = at::arange(7 * 5 * channels).mul(37).remainder(251).to(at::kByte).view({7, 5, channels});
    write_png(file, pixels);
    const auto* data = pixels.const_data_ptr<uint8_t>();
    EXPECT_EQ(read(file), Bytes(data, data + pixels.numel()));
    const ImageHeader header = open_image(file, ImageFormat::png)->header();
    EXPECT_EQ(header.width, 5);
    EXPECT_EQ(header.height, 7);
    EXPECT_EQ(header.channels, channels);
    write_png(file, pixels.transpose(0, 1));  // not dense
    const at::Tensor dense = pixels.transpose(0, 1).contiguous();
    const auto* turned = dense.const_data_ptr<uint8_t>();
    EXPECT_EQ(read(file), Bytes(turned, turned + pixels.numel()));
  }
}

TEST(ImageFile, RefusesToWriteWhereItCannot) {
  const TempFolder folder;
  const std::string file = folder.path("no/a.png");
  EXPECT_EQ(error_of([&] {
              write_png(file, at::zeros({2, 2, 3}, at::kByte));
            }),
            file + " cannot be written: No such file or directory");
  for (int64_t side : {2, 600})  // met when it is closed, and while it is written
    EXPECT_THROW(write_png("/dev/full", at::randint(256, {side, side, 3}, at::kByte)), ClusterError) << side;
  EXPECT_THROW(write_png(folder.path("a.png"), at::zeros({2, 2, 4}, at::kByte)), InternalError);
  EXPECT_THROW(write_png(folder.path("a.png"), at::zeros({2, 2, 3})), InternalError);
}

TEST(ImageFile, ReadsEveryKindOfPng) {
  const TempFolder folder;
  const std::string file = folder.path("a.png");
  for (const TestPng& test : every_png()) {
    write_test_png(file, test);
    const Bytes expected = expected_pixels(test);
    EXPECT_EQ(read(file), expected) << to_text(test);
    const auto row_bytes = static_cast<int64_t>(expected.size()) / test.height;
    for (int first = 0; first < test.height; ++first)
      for (int end = first + 1; end <= test.height; ++end)
        EXPECT_EQ(read(file, first, end),
                  Bytes(expected.begin() + first * row_bytes, expected.begin() + end * row_bytes))
            << to_text(test) << " rows " << first << " to " << end;
  }
}

TEST(ImageFile, ReadsEveryKindOfJpeg) {
  const TempFolder folder;
  const std::string file = folder.path("a.jpg");
  for (const TestJpeg& test : every_jpeg()) {
    write_test_jpeg(file, test);
    const Bytes pixels = read(file);
    ASSERT_EQ(pixels.size(), static_cast<size_t>(test.width * test.height * test.channels())) << to_text(test);
    int worst = 0;
    for (int i = 0; i < static_cast<int>(pixels.size()); ++i) {
      const int pixel = i / test.channels();
      const int sample = TestJpeg::sample(pixel % test.width, pixel / test.width, i % test.channels());
      worst = std::max(worst, std::abs(sample - pixels[static_cast<size_t>(i)]));
    }
    EXPECT_LE(worst, test.across * test.down > 1 ? 24 : 8) << to_text(test);
  }
}

TEST(ImageFile, AJpegsRowsAreTheSameWhateverWasSkipped) {
  const TempFolder folder;
  const std::string file = folder.path("a.jpg");
  for (TestJpeg test : every_jpeg()) {
    test.quality = 30;  // neighbours differ, so that a wrong row at a block's edge shows
    write_test_jpeg(file, test);
    const Bytes all = read(file);
    const auto row_bytes = static_cast<int64_t>(all.size()) / test.height;
    for (int first = 0; first < test.height; ++first)
      for (const int end : {first + 1, std::min(first + 9, test.height), test.height})
        ASSERT_EQ(read(file, first, end), Bytes(all.begin() + first * row_bytes, all.begin() + end * row_bytes))
            << to_text(test) << " rows " << first << " to " << end;
    for (int step = 2; step < 20; ++step) {  // several skips
      const auto image = open_image(file, ImageFormat::jpeg);
      for (int row = 0; row < test.height; row += step)
        ASSERT_EQ(std::memcmp(image->read(row), all.data() + row * row_bytes, static_cast<size_t>(row_bytes)), 0)
            << to_text(test) << " row " << row << " step " << step;
    }
  }
}

TEST(ImageFile, RefusesTransparencyAndCmyk) {
  const TempFolder folder;
  for (const int colours : {PNG_COLOR_TYPE_RGBA, PNG_COLOR_TYPE_GRAY_ALPHA}) {
    write_test_png(folder.path("a.png"), {.colours = colours});
    EXPECT_EQ(refusal(folder.path("a.png")), "has an alpha channel: flatten it first");
  }
  for (const int colours : {PNG_COLOR_TYPE_RGB, PNG_COLOR_TYPE_GRAY, PNG_COLOR_TYPE_PALETTE}) {
    write_test_png(folder.path("a.png"), {.colours = colours, .transparent = true});
    EXPECT_EQ(refusal(folder.path("a.png")), "has an alpha channel (its tRNS chunk): flatten it first");
  }
  for (const J_COLOR_SPACE stored : {JCS_CMYK, JCS_YCCK}) {
    write_test_jpeg(folder.path("a.jpg"), {.colours = JCS_CMYK, .stored = stored});
    EXPECT_EQ(refusal(folder.path("a.jpg")), "has CMYK colours: convert it to RGB first");
  }
}

TEST(ImageFile, RefusesColoursThatAreNotInThePalette) {
  const TempFolder folder;
  const std::string file = folder.path("a.png");
  for (const bool interlaced : {false, true})
    for (const int depth : {2, 4, 8}) {
      write_test_png(
          file, {.depth = depth, .colours = PNG_COLOR_TYPE_PALETTE, .interlaced = interlaced, .largest_palette = 3});
      EXPECT_EQ(refusal(file),
                "is damaged or truncated (a pixel's colour is not in its palette): replace or remove it");
    }
}

TEST(ImageFile, RefusesWhatIsNotOfItsFormat) {
  const TempFolder folder;
  EXPECT_EQ(refusal(folder.path("none.png")), "cannot be opened: No such file or directory");
  EXPECT_EQ(refusal(folder.write("a.png", "")), "is empty: replace or remove it");
  EXPECT_EQ(refusal(folder.write("a.jpg", "")), "is empty: replace or remove it");
  EXPECT_EQ(refusal(folder.write("a.png", "GIF89a")), "is not a PNG file despite its name: replace or remove it");
  EXPECT_EQ(refusal(folder.write("a.jpg", "GIF89a")), "is not a JPEG file despite its name: replace or remove it");
  write_test_png(folder.path("b.jpg"), {});
  EXPECT_EQ(refusal(folder.path("b.jpg")), "is not a JPEG file despite its name but a PNG file: rename it");
  write_test_jpeg(folder.path("b.png"), {});
  EXPECT_EQ(refusal(folder.path("b.png")), "is not a PNG file despite its name but a JPEG file: rename it");
}

// A header's checksum, so that only its sizes are wrong.
uint32_t sum_of(std::string_view bytes) {
  uint32_t sum = ~0u;
  for (const char byte : bytes) {
    sum ^= static_cast<unsigned char>(byte);
    for (int i = 0; i < 8; ++i) sum = sum >> 1 ^ (sum & 1 ? 0xedb88320 : 0);
  }
  return ~sum;
}

std::string with_png_size(std::string png, uint32_t width, uint32_t height) {
  const auto put = [&](size_t place, uint32_t value) {
    for (size_t i = 0; i < 4; ++i) png[place + i] = static_cast<char>(value >> (24 - 8 * i));
  };
  put(16, width);
  put(20, height);
  put(29, sum_of(std::string_view(png).substr(12, 17)));
  return png;
}

std::string progressive_of_65000(const TempFolder& folder) {
  write_test_jpeg(folder.path("a.jpg"), {.progressive = true});
  std::string jpeg = bytes_of(folder.path("a.jpg"));
  const size_t frame = jpeg.find("\xff\xc2");
  STARTRAIL_CHECK(frame != std::string::npos, "no progressive frame");
  return jpeg.replace(frame + 5, 4, "\xfd\xe8\xfd\xe8");  // 65000 x 65000
}

TEST(ImageFile, DoesNotBelieveAbsurdSizes) {
  const TempFolder folder;
  for (const bool interlaced : {false, true}) {
    write_test_png(folder.path("a.png"), {.interlaced = interlaced});
    const std::string png = bytes_of(folder.path("a.png"));
    ASSERT_EQ(with_png_size(png, 13, 11), png);
    EXPECT_EQ(refusal(folder.write("b.png", with_png_size(png, 65'536, 3))),
              "says it has 65536 x 3 pixels: at most 65,535 a side are read");
    EXPECT_EQ(refusal(folder.write("b.png", with_png_size(png, 2, 2'000'000'000))),
              "says it has 2 x 2000000000 pixels: at most 65,535 a side are read");
    EXPECT_EQ(refusal(folder.write("b.png", with_png_size(png, 65'535, 65'535))),
              cat("is damaged or truncated (65535 x 65535 pixels cannot be in ", png.size(),
                  " bytes): replace or remove it"));
    EXPECT_NE(refusal(folder.write("b.png", with_png_size(png, 0, 11))).find("is damaged or truncated"),
              std::string::npos);
  }
  const std::string jpeg = progressive_of_65000(folder);
  EXPECT_EQ(refusal(folder.write("b.jpg", jpeg)), cat("is damaged or truncated (65000 x 65000 pixels cannot be in ",
                                                      jpeg.size(), " bytes): replace or remove it"));
}

// Even when the files are long enough for what their headers say.
TEST(ImageFile, DoesNotHoldHugePictures) {
  const TempFolder folder;
  const std::string padding(500'000, '\0');
  for (const bool interlaced : {false, true}) {
    write_test_png(folder.path("a.png"), {.interlaced = interlaced});
    const std::string file =
        folder.write("b.png", with_png_size(bytes_of(folder.path("a.png")), 40'000, 40'000) + padding);
    // Row by row it takes no memory, and is found to be too short.
    const char* start = interlaced
                            ? "is interlaced and would take 4.80 GB of memory, more than 1.00 GB: save it another way"
                            : "is damaged or truncated";
    EXPECT_TRUE(refusal(file).starts_with(start)) << refusal(file);
  }
  EXPECT_EQ(refusal(folder.write("b.jpg", progressive_of_65000(folder) + padding)),
            "is progressive and would take 25.4 GB of memory, more than 1.00 GB: save it another way");
}

// Files of all kinds whose every prefix and every flipped bit is tried.
std::vector<std::string> make_victims(const TempFolder& folder) {
  std::vector<std::string> files;
  for (const TestPng& test : every_png())
    if (test.depth >= 8) write_test_png(files.emplace_back(folder.path(cat("a", files.size(), ".png"))), test);
  for (const TestJpeg& test : every_jpeg())
    if (test.down == test.across)
      write_test_jpeg(files.emplace_back(folder.path(cat("a", files.size(), ".jpg"))), test);
  return files;
}

TEST(ImageFile, ATruncatedFileIsNeverSilentlyWrong) {
  const TempFolder folder;
  testing::internal::CaptureStderr();
  for (const std::string& file : make_victims(folder)) {
    const Bytes whole = read(file);
    const size_t bytes = bytes_of(file).size();
    size_t refused = 0;
    for (size_t length = bytes - 1; length < bytes; --length) {
      std::filesystem::resize_file(file, length);
      Bytes pixels;
      const std::string error = error_of([&] { pixels = read(file); });
      const bool recognized = length > 10;
      if (error == "no error") {
        EXPECT_EQ(pixels, whole) << file << " cut to " << length << " of " << bytes;
      } else {
        ++refused;
        EXPECT_TRUE(!recognized || error.starts_with(file + " is damaged or truncated (")) << error;
      }
    }
    EXPECT_GE(refused, bytes - 2) << file;  // the end marker of a JPEG is not needed
  }
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "");
}

// A PNG has checksums, so damage shows. In a JPEG a flipped bit may be another picture; it must only not do harm.
TEST(ImageFile, FlippedBitsAreFoundOrHarmless) {
  const TempFolder folder;
  testing::internal::CaptureStderr();
  for (const std::string& file : make_victims(folder)) {
    const bool png = file.ends_with(".png");
    const Bytes whole = read(file);
    const std::string bytes = bytes_of(file);
    std::fstream edit(file, std::ios::binary | std::ios::in | std::ios::out);
    const auto put = [&](size_t place, int value) {
      edit.seekp(static_cast<std::streamoff>(place)).put(static_cast<char>(value)).flush();
    };
    size_t refused = 0;
    for (size_t place = 0; place < bytes.size(); ++place) {
      put(place, bytes[place] ^ 1 << place % 8);
      Bytes pixels;
      const bool found = error_of([&] { pixels = read(file); }) != "no error";
      refused += found ? 1 : 0;
      EXPECT_TRUE(found || !png || pixels == whole) << file << " byte " << place;
      put(place, bytes[place]);
    }
    EXPECT_EQ(bytes_of(file), bytes);
    EXPECT_GE(refused, png ? bytes.size() * 9 / 10 : 1) << file;
  }
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "");
}

// Or else a picture would be read as if it had none.
TEST(ImageFile, TransparencyIsNotLostToDamage) {
  const TempFolder folder;
  write_test_png(folder.path("a.png"), {.transparent = true});
  const std::string bytes = bytes_of(folder.path("a.png"));
  for (size_t place = 0; place < bytes.find("IDAT") - 4; ++place)
    for (int bit = 0; bit < 8; ++bit) {
      std::string damaged = bytes;
      damaged[place] ^= static_cast<char>(1 << bit);
      EXPECT_NE(refusal(folder.write(cat(place, "-", bit, ".png"), damaged)), "no error") << place << " bit " << bit;
    }
}

}  // namespace
}  // namespace startrail

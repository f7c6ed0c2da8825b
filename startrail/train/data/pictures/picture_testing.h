// For tests: image files of every kind, made with the libraries themselves, and .npy files by hand. Not used by the
// library.
#pragma once

#include <png.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

// After <cstdio>, whose FILE it uses without including it.
#include <jpeglib.h>

#include "startrail/base/error.h"
#include "startrail/train/data/pictures/pictures.h"

namespace startrail {

inline std::string bytes_of(const std::string& file) {
  std::ifstream in(file, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

// An error without the advice to skip such files.
inline std::string without_advice(const std::string& error) { return error.substr(0, error.find(kSkipAdvice)); }

// A different value for every place and channel.
inline uint8_t test_pixel(int64_t x, int64_t y, int64_t channel) {
  return static_cast<uint8_t>(x * 7 + y * 29 + x * y % 11 + channel * 83);
}

struct TestPng {
  int width = 13, height = 11;
  int depth = 8, colours = PNG_COLOR_TYPE_RGB;
  bool interlaced = false, transparent = false;  // transparent: with a tRNS chunk
  int largest_palette = 256;                     // colours; samples may be beyond it

  int channels() const {
    return (colours & PNG_COLOR_MASK_COLOR && colours != PNG_COLOR_TYPE_PALETTE ? 3 : 1) +
           (colours & PNG_COLOR_MASK_ALPHA ? 1 : 0);
  }
  // What the file holds: a number of `depth` bits.
  int sample(int x, int y, int channel) const {
    const int value = test_pixel(x, y, channel) * 257 + 31 * x;  // the low byte differs from the high one
    return value & ((1 << depth) - 1);
  }
  static png_color palette(int index) {
    return {static_cast<png_byte>(index * 11), static_cast<png_byte>(255 - index), static_cast<png_byte>(index ^ 85)};
  }
};

inline void write_test_png(const std::string& file, const TestPng& test) {
  std::FILE* out = std::fopen(file.c_str(), "wb");
  STARTRAIL_CHECK(out, file);
  png_structp png = png_create_write_struct(PNG_LIBPNG_VER_STRING, nullptr, nullptr, nullptr);
  png_infop info = png_create_info_struct(png);
  png_init_io(png, out);
  png_set_check_for_invalid_index(png, 0);
  png_set_IHDR(png, info, static_cast<png_uint_32>(test.width), static_cast<png_uint_32>(test.height), test.depth,
               test.colours, test.interlaced ? PNG_INTERLACE_ADAM7 : PNG_INTERLACE_NONE, PNG_COMPRESSION_TYPE_DEFAULT,
               PNG_FILTER_TYPE_DEFAULT);
  std::vector<png_color> palette;
  for (int i = 0; i < std::min(1 << std::min(test.depth, 8), test.largest_palette); ++i)
    palette.push_back(TestPng::palette(i));
  if (test.colours == PNG_COLOR_TYPE_PALETTE) png_set_PLTE(png, info, palette.data(), static_cast<int>(palette.size()));
  png_byte alpha = 7;
  png_color_16 key{};
  if (test.transparent) png_set_tRNS(png, info, &alpha, 1, test.colours == PNG_COLOR_TYPE_PALETTE ? nullptr : &key);
  png_write_info(png, info);
  const int samples = test.width * test.channels();
  std::vector<std::vector<png_byte>> rows;
  for (int y = 0; y < test.height; ++y) {
    std::vector<png_byte> row(static_cast<size_t>(samples * test.depth + 7) / 8);
    for (int i = 0; i < samples; ++i) {
      const int value = test.sample(i / test.channels(), y, i % test.channels());
      const auto bit = static_cast<size_t>(i * test.depth);
      if (test.depth == 16) row[bit / 8 + 1] = static_cast<png_byte>(value);
      if (test.depth == 16) row[bit / 8] = static_cast<png_byte>(value >> 8);
      if (test.depth <= 8) row[bit / 8] |= static_cast<png_byte>(value << (8 - static_cast<int>(bit % 8) - test.depth));
    }
    rows.push_back(std::move(row));
  }
  std::vector<png_bytep> pointers;
  for (auto& row : rows) pointers.push_back(row.data());
  png_write_image(png, pointers.data());
  png_write_end(png, nullptr);
  png_destroy_write_struct(&png, &info);
  std::fclose(out);
}

struct TestJpeg {
  int width = 37, height = 43;
  J_COLOR_SPACE colours = JCS_RGB, stored = JCS_YCbCr;
  int across = 1, down = 1;  // subsampling of the colours
  bool progressive = false;
  int restart_rows = 0;
  int quality = 95;

  int channels() const { return colours == JCS_GRAYSCALE ? 1 : colours == JCS_CMYK ? 4 : 3; }
  static uint8_t sample(int x, int y, int channel) {  // smooth, as photographs are
    return static_cast<uint8_t>(40 + (channel == 1 ? 3 : 1) * x + (channel == 2 ? 3 : 2) * y);
  }
};

inline void write_test_jpeg(const std::string& file, const TestJpeg& test) {
  std::FILE* out = std::fopen(file.c_str(), "wb");
  STARTRAIL_CHECK(out, file);
  jpeg_compress_struct info{};
  jpeg_error_mgr errors{};
  info.err = jpeg_std_error(&errors);
  jpeg_create_compress(&info);
  jpeg_stdio_dest(&info, out);
  info.image_width = static_cast<JDIMENSION>(test.width);
  info.image_height = static_cast<JDIMENSION>(test.height);
  info.input_components = test.channels();
  info.in_color_space = test.colours;
  jpeg_set_defaults(&info);
  jpeg_set_colorspace(&info, test.stored);
  jpeg_set_quality(&info, test.quality, TRUE);
  info.comp_info[0].h_samp_factor = test.across;
  info.comp_info[0].v_samp_factor = test.down;
  info.restart_in_rows = test.restart_rows;
  if (test.progressive) jpeg_simple_progression(&info);
  jpeg_start_compress(&info, TRUE);
  std::vector<uint8_t> row(static_cast<size_t>(test.width * test.channels()));
  for (int y = 0; y < test.height; ++y) {
    for (size_t i = 0; i < row.size(); ++i)
      row[i] = TestJpeg::sample(static_cast<int>(i) / test.channels(), y, static_cast<int>(i) % test.channels());
    JSAMPROW pointer = row.data();
    jpeg_write_scanlines(&info, &pointer, 1);
  }
  jpeg_finish_compress(&info);
  jpeg_destroy_compress(&info);
  std::fclose(out);
}

// A .npy file of this dictionary; `version` 1 has a length of two bytes, later ones of four.
inline std::string npy_bytes(const std::string& dictionary, const std::string& numbers, int version = 1) {
  std::string header = dictionary, length;
  const size_t before = version == 1 ? 10 : 12;
  header.resize((before + header.size() + 64) / 64 * 64 - before - 1, ' ');
  header += '\n';
  for (size_t i = 0; i < (version == 1 ? 2 : 4); ++i) length += static_cast<char>(header.size() >> (8 * i));
  return std::string("\x93NUMPY") + static_cast<char>(version) + '\0' + length + header + numbers;
}

inline std::string npy_dictionary(const std::string& type, const std::string& shape, const char* order = "False") {
  return cat("{'descr': '", type, "', 'fortran_order': ", order, ", 'shape': ", shape, ", }");
}

template <class Number>
std::string raw_bytes(const std::vector<Number>& numbers) {
  return {reinterpret_cast<const char*>(numbers.data()), numbers.size() * sizeof(Number)};
}

}  // namespace startrail

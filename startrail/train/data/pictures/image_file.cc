#include "startrail/train/data/pictures/image_file.h"

#include <ATen/ATen.h>
#include <png.h>
#include <sys/stat.h>
#include <zlib.h>

#include <algorithm>
#include <cerrno>
#include <csetjmp>
#include <cstdio>
#include <cstring>
#include <vector>

// After <cstdio>, whose FILE it uses without including it.
#include <jpeglib.h>
// After jpeglib.h.
#include <jerror.h>

#include "startrail/base/error.h"
#include "startrail/base/file.h"

// Both libraries report errors by longjmp, which skips destructors. So they are called only inside of a Handle's run(),
// in lambdas that hold nothing to be destroyed, and what must be freed is owned by objects outside.
namespace startrail {
namespace {

namespace fs = std::filesystem;
using Stream = std::unique_ptr<std::FILE, int (*)(std::FILE*)>;

Stream open_stream(const fs::path& file, const char* mode, const char* failed) {
  Stream stream(std::fopen(file.c_str(), mode), std::fclose);
  if (!stream) throw_file_error(file.string(), failed, errno);
  return stream;
}

// What both formats share: the open file, its size, and errors that name it.
class Input {
 public:
  explicit Input(const fs::path& file) : file_(file), stream_(open_stream(file, "rbe", "cannot be opened")) {
    struct stat status {};
    if (fstat(fileno(stream_.get()), &status) == 0) bytes_ = status.st_size;
  }

  std::FILE* stream() const { return stream_.get(); }
  std::string path() const { return file_.string(); }

  [[noreturn]] void fail(const std::string& what) const { throw UserError(cat(file_.string(), " ", what)); }
  [[noreturn]] void fail_damaged(const char* detail) const {
    fail(cat("is damaged or truncated (", detail, "): replace or remove it"));
  }

  // The file's first bytes, of the format it should have.
  void check_format(ImageFormat format) const {
    const unsigned char png[] = {0x89, 'P', 'N', 'G', '\r', '\n', 0x1a, '\n'}, jpeg[] = {0xff, 0xd8, 0xff};
    unsigned char head[sizeof png] = {};
    const size_t got = std::fread(head, 1, sizeof head, stream_.get());
    if (std::ferror(stream_.get())) throw_file_error(file_.string(), "cannot be read", errno);
    std::rewind(stream_.get());
    if (got == 0) fail("is empty: replace or remove it");
    const bool is_png = std::memcmp(head, png, sizeof png) == 0, is_jpeg = std::memcmp(head, jpeg, sizeof jpeg) == 0;
    if (format == ImageFormat::png ? is_png : is_jpeg) return;
    fail(cat("is not a ", format == ImageFormat::png ? "PNG" : "JPEG", " file despite its name",
             is_png    ? " but a PNG file"
             : is_jpeg ? " but a JPEG file"
                       : "",
             is_png || is_jpeg ? ": rename it" : ": replace or remove it"));
  }

  // Before anything is allocated by what the header says. 10,000 pixels a byte are more than either format can pack.
  void check_size(const ImageHeader& header) const {
    if (header.width > kLargestSide || header.height > kLargestSide)
      fail(cat("says it has ", header.width, " x ", header.height, " pixels: at most 65,535 a side are read"));
    if (bytes_ >= 0 && header.width * header.height / 10'000 > bytes_)
      fail_damaged(cat(header.width, " x ", header.height, " pixels cannot be in ", bytes_, " bytes").c_str());
  }

  // Of a picture that cannot be decoded row by row.
  void check_held(const char* what, int64_t bytes) const {
    if (bytes > kLargestHeld)
      fail(cat("is ", what, " and would take ", human_bytes(static_cast<double>(bytes)), " of memory, more than ",
               human_bytes(kLargestHeld), ": save it another way"));
  }

 private:
  fs::path file_;
  Stream stream_;
  int64_t bytes_ = -1;  // -1: not known
};

// libpng's state for reading or writing, and the way its errors take.
struct PngHandle {
  png_structp png = nullptr;
  png_infop info = nullptr;
  const bool writes;
  char message[128] = {};

  explicit PngHandle(bool write) : writes(write) {
    png = write ? png_create_write_struct(PNG_LIBPNG_VER_STRING, this, on_error, on_warning)
                : png_create_read_struct(PNG_LIBPNG_VER_STRING, this, on_error, on_warning);
    if (png) info = png_create_info_struct(png);
    if (!info) {
      free();
      throw std::bad_alloc();
    }
  }
  ~PngHandle() { free(); }
  PngHandle(const PngHandle&) = delete;
  PngHandle& operator=(const PngHandle&) = delete;

  // Whether `calls` went through; else `message` says why.
  template <class Calls>
  [[nodiscard]] bool run(const Calls& calls) {
    if (setjmp(png_jmpbuf(png)) != 0) return false;
    calls();
    return true;
  }

 private:
  void free() {
    if (writes)
      png_destroy_write_struct(&png, &info);
    else
      png_destroy_read_struct(&png, &info, nullptr);
  }
  static void on_error(png_structp png, png_const_charp text) {
    auto* handle = static_cast<PngHandle*>(png_get_error_ptr(png));
    std::snprintf(handle->message, sizeof handle->message, "%s", text);
    png_longjmp(png, 1);
  }
  static void on_warning(png_structp, png_const_charp) {}  // about profiles and texts, which are not used
};

class PngRows : public ImageRows {
 public:
  explicit PngRows(const fs::path& file) : input_(file) {
    input_.check_format(ImageFormat::png);
    int depth = 0, interlace = 0;
    png_uint_32 width = 0, height = 0;
    run([&] {
      png_set_read_fn(handle_.png, input_.stream(), read_bytes);
      // A damaged tRNS chunk must not pass for none.
      png_set_crc_action(handle_.png, PNG_CRC_ERROR_QUIT, PNG_CRC_ERROR_QUIT);
      png_set_user_limits(handle_.png, PNG_UINT_31_MAX, PNG_UINT_31_MAX);  // check_size has the better message
      png_read_info(handle_.png, handle_.info);
      png_get_IHDR(handle_.png, handle_.info, &width, &height, &depth, &colours_, &interlace, nullptr, nullptr);
    });
    header_ = {width, height, colours_ & PNG_COLOR_MASK_COLOR ? 3 : 1};
    interlaced_ = interlace != PNG_INTERLACE_NONE;
    input_.check_size(header_);
    if (interlaced_) input_.check_held("interlaced", row_bytes() * header_.height);
    if (colours_ & PNG_COLOR_MASK_ALPHA) input_.fail("has an alpha channel: flatten it first");
    if (png_get_valid(handle_.png, handle_.info, PNG_INFO_tRNS))
      input_.fail("has an alpha channel (its tRNS chunk): flatten it first");
  }

  const ImageHeader& header() const override { return header_; }

  const uint8_t* read(int64_t row) override {
    STARTRAIL_CHECK(row >= next_ && row < header_.height, "row ", row, " after row ", next_ - 1);
    if (next_ == 0) start();
    uint8_t* out = pixels_.data();
    if (interlaced_) {
      out += row * row_bytes();
    } else {
      run([&] {
        for (int64_t i = next_; i <= row; ++i) png_read_row(handle_.png, out, nullptr);
        if (row == header_.height - 1) png_read_end(handle_.png, nullptr);  // checks the sums of the whole data
      });
    }
    next_ = row + 1;
    return is_palette() ? to_colours(out) : out;
  }

 private:
  bool is_palette() const { return colours_ == PNG_COLOR_TYPE_PALETTE; }
  int64_t row_bytes() const { return header_.width * (is_palette() ? 1 : header_.channels); }  // as libpng gives them

  // By hand: libpng makes an index beyond the palette black and says nothing.
  const uint8_t* to_colours(const uint8_t* indices) {
    png_colorp palette = nullptr;
    int count = 0;
    png_get_PLTE(handle_.png, handle_.info, &palette, &count);
    row_.resize(static_cast<size_t>(header_.width * header_.channels));
    for (int64_t x = 0; x < header_.width; ++x) {
      if (indices[x] >= count) input_.fail_damaged("a pixel's colour is not in its palette");
      std::memcpy(row_.data() + 3 * x, &palette[indices[x]], 3);
    }
    return row_.data();
  }

  // Of every chunk, from the file's bytes: libpng compares a checksum only when it has read all of a chunk, which may
  // lie behind the last row asked for.
  void check_sums() {
    const OpenFile file(input_.path());
    unsigned char buffer[64 << 10];
    int64_t at = 8;  // behind the signature
    const auto read = [&](int64_t count) {
      const auto wanted = static_cast<size_t>(count);
      if (file.read(at, buffer, wanted) != wanted) input_.fail_damaged("it ends too early");
      at += count;
    };
    const auto number = [&] { return int64_t{buffer[0]} << 24 | buffer[1] << 16 | buffer[2] << 8 | buffer[3]; };
    for (bool ended = false; !ended;) {
      read(8);
      ended = std::memcmp(buffer + 4, "IEND", 4) == 0;
      int64_t left = number();
      uLong sum = crc32(0, buffer + 4, 4);
      for (int64_t now; left > 0; left -= now) {
        now = std::min<int64_t>(left, sizeof buffer);
        read(now);
        sum = crc32(sum, buffer, static_cast<uInt>(now));
      }
      read(4);
      if (number() != static_cast<int64_t>(sum)) input_.fail_damaged("a checksum is wrong");
    }
  }

  void start() {
    check_sums();
    run([&] {
      if (is_palette()) png_set_packing(handle_.png);  // an index a byte
      if (colours_ == PNG_COLOR_TYPE_GRAY) png_set_expand_gray_1_2_4_to_8(handle_.png);
      png_set_scale_16(handle_.png);
      png_set_interlace_handling(handle_.png);
      png_read_update_info(handle_.png, handle_.info);
    });
    const auto bytes = static_cast<int64_t>(png_get_rowbytes(handle_.png, handle_.info));
    STARTRAIL_CHECK(bytes == row_bytes(), bytes, " bytes a row for ", header_.width, " pixels");
    pixels_.resize(static_cast<size_t>(row_bytes() * (interlaced_ ? header_.height : 1)));
    if (!interlaced_) return;
    // Interlaced: the last pass may still change the first row, so there is nothing to save.
    std::vector<png_bytep> rows(static_cast<size_t>(header_.height));
    for (size_t i = 0; i < rows.size(); ++i) rows[i] = pixels_.data() + static_cast<int64_t>(i) * row_bytes();
    run([&] {
      png_read_image(handle_.png, rows.data());
      png_read_end(handle_.png, nullptr);
    });
  }

  template <class Calls>
  void run(const Calls& calls) {
    if (!handle_.run(calls)) input_.fail_damaged(handle_.message);
  }

  static void read_bytes(png_structp png, png_bytep out, size_t bytes) {
    if (std::fread(out, 1, bytes, static_cast<std::FILE*>(png_get_io_ptr(png))) != bytes)
      png_error(png, "it ends too early");
  }

  Input input_;
  PngHandle handle_{false};
  ImageHeader header_;
  int colours_ = 0;
  bool interlaced_ = false;
  int64_t next_ = 0;
  std::vector<uint8_t> pixels_;  // a row, or all of an interlaced picture; indices when it has a palette
  std::vector<uint8_t> row_;     // the colours of a row of indices
};

// libjpeg's state, and the way its errors take.
struct JpegHandle {
  jpeg_decompress_struct info{};
  jpeg_error_mgr errors{};
  std::jmp_buf jump{};
  bool in_data = false;  // behind the header
  char message[JMSG_LENGTH_MAX] = {};

  JpegHandle() {
    info.err = jpeg_std_error(&errors);
    info.client_data = this;
    errors.error_exit = on_error;
    errors.emit_message = on_message;
    errors.output_message = [](j_common_ptr) {};
  }
  ~JpegHandle() { jpeg_destroy_decompress(&info); }
  JpegHandle(const JpegHandle&) = delete;
  JpegHandle& operator=(const JpegHandle&) = delete;

  // Whether `calls` went through; else `message` says why.
  template <class Calls>
  [[nodiscard]] bool run(const Calls& calls) {
    if (setjmp(jump) != 0) return false;
    calls();
    return true;
  }

 private:
  static void on_error(j_common_ptr info) {
    auto* handle = static_cast<JpegHandle*>(info->client_data);
    info->err->format_message(info, handle->message);
    std::longjmp(handle->jump, 1);
  }
  // libjpeg makes up what is missing and warns (level -1); training would never know. Harmless are odd versions, and
  // bytes between the segments of a header, which some cameras leave.
  static void on_message(j_common_ptr info, int level) {
    const int code = info->err->msg_code;
    const bool in_data = static_cast<JpegHandle*>(info->client_data)->in_data;
    const bool harmless =
        code == JWRN_JFIF_MAJOR || code == JWRN_ADOBE_XFORM || (code == JWRN_EXTRANEOUS_DATA && !in_data);
    if (level < 0 && !harmless) on_error(info);
  }
};

class JpegRows : public ImageRows {
 public:
  explicit JpegRows(const fs::path& file) : input_(file) {
    input_.check_format(ImageFormat::jpeg);
    run([&] {
      jpeg_create_decompress(&handle_.info);
      jpeg_stdio_src(&handle_.info, input_.stream());
      jpeg_read_header(&handle_.info, TRUE);
    });
    const auto& info = handle_.info;
    header_ = {info.image_width, info.image_height, info.jpeg_color_space == JCS_GRAYSCALE ? 1 : 3};
    input_.check_size(header_);
    constexpr int64_t kCoefficient = 2;  // bytes
    if (jpeg_has_multiple_scans(&handle_.info))
      input_.check_held("progressive", header_.width * header_.height * header_.channels * kCoefficient);
    switch (info.jpeg_color_space) {
      case JCS_GRAYSCALE:
      case JCS_RGB:
      case JCS_YCbCr:
        break;
      case JCS_CMYK:
      case JCS_YCCK:
        input_.fail("has CMYK colours: convert it to RGB first");
      default:
        input_.fail(cat("has ", info.num_components, " channels of unknown colours: convert it to RGB first"));
    }
  }

  const ImageHeader& header() const override { return header_; }

  const uint8_t* read(int64_t row) override {
    STARTRAIL_CHECK(row >= next_ && row < header_.height, "row ", row, " after row ", next_ - 1);
    row_.resize(static_cast<size_t>(header_.width * header_.channels));
    run([&] {
      auto& info = handle_.info;
      if (next_ == 0) {
        handle_.in_data = true;
        info.out_color_space = header_.channels == 1 ? JCS_GRAYSCALE : JCS_RGB;
        jpeg_start_decompress(&info);
      }
      if (row > next_) jpeg_skip_scanlines(&info, static_cast<JDIMENSION>(row - next_));
      JSAMPROW out = row_.data();
      jpeg_read_scanlines(&info, &out, 1);
      if (row == header_.height - 1) jpeg_finish_decompress(&info);
    });
    next_ = row + 1;
    return row_.data();
  }

 private:
  template <class Calls>
  void run(const Calls& calls) {
    if (!handle_.run(calls)) input_.fail_damaged(handle_.message);
  }

  Input input_;
  JpegHandle handle_;
  ImageHeader header_;
  int64_t next_ = 0;
  std::vector<uint8_t> row_;
};

}  // namespace

std::unique_ptr<ImageRows> open_image(const fs::path& file, ImageFormat format) {
  if (format == ImageFormat::png) return std::make_unique<PngRows>(file);
  return std::make_unique<JpegRows>(file);
}

void write_png(const fs::path& file, const at::Tensor& pixels) {
  STARTRAIL_CHECK(pixels.dim() == 3 && pixels.scalar_type() == at::kByte && pixels.numel() > 0 &&
                      (pixels.size(2) == 1 || pixels.size(2) == 3),
                  "pixels are uint8 [height, width, 1 or 3], not ", pixels.scalar_type(), " ", pixels.sizes());
  const at::Tensor dense = pixels.cpu().contiguous();
  const int64_t height = dense.size(0), width = dense.size(1), channels = dense.size(2);
  Stream stream = open_stream(file, "wbe", "cannot be written");
  PngHandle handle(true);
  const auto* data = dense.const_data_ptr<uint8_t>();
  errno = 0;  // libpng says only that writing failed
  const bool written = handle.run([&] {
    png_init_io(handle.png, stream.get());
    png_set_user_limits(handle.png, PNG_UINT_31_MAX, PNG_UINT_31_MAX);
    png_set_IHDR(handle.png, handle.info, static_cast<png_uint_32>(width), static_cast<png_uint_32>(height), 8,
                 channels == 1 ? PNG_COLOR_TYPE_GRAY : PNG_COLOR_TYPE_RGB, PNG_INTERLACE_NONE,
                 PNG_COMPRESSION_TYPE_DEFAULT, PNG_FILTER_TYPE_DEFAULT);
    png_write_info(handle.png, handle.info);
    for (int64_t row = 0; row < height; ++row) png_write_row(handle.png, data + row * width * channels);
    png_write_end(handle.png, nullptr);
  });
  // Closing writes what is still buffered: a full disk may show only here.
  const bool closed = std::fclose(stream.release()) == 0;
  if ((!written || !closed) && errno != 0) throw_file_error(file.string(), "cannot be written", errno);
  if (!written) throw UserError(cat(file.string(), " cannot be written: ", handle.message));
}

}  // namespace startrail

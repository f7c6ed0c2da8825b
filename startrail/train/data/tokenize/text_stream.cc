#include "startrail/train/data/tokenize/text_stream.h"

#include <zlib.h>
#include <zstd.h>

#include <algorithm>
#include <new>

#include "startrail/base/error.h"

namespace startrail {

bool ends_as(std::string_view path, std::string_view ending) {
  const auto same = [](char letter, char other) { return std::tolower(static_cast<unsigned char>(letter)) == other; };
  return path.size() >= ending.size() && std::ranges::equal(path.substr(path.size() - ending.size()), ending, same);
}

std::string_view packing_of(std::string_view path) {
  for (const std::string_view ending : {".gz", ".zst"})
    if (ends_as(path, ending)) return ending;
  return "";
}

// Takes from the front of `in` and gives how many bytes it put into `out`. Throws a text that says what is wrong.
class TextStream::Unpacker {
 public:
  virtual ~Unpacker() = default;
  virtual size_t unpack(std::string_view& in, char* out, size_t bytes) = 0;
  bool whole = false;  // what was read so far is complete: the file may end here
};

namespace {

struct Damage {
  std::string what;
};

class Gzip : public TextStream::Unpacker {
 public:
  Gzip() {
    constexpr int kGzipOnly = 16;
    if (inflateInit2(&state_, MAX_WBITS + kGzipOnly) != Z_OK) throw std::bad_alloc();
  }
  ~Gzip() override { inflateEnd(&state_); }

  size_t unpack(std::string_view& in, char* out, size_t bytes) override {
    if (whole && in.empty()) return 0;
    if (whole) inflateReset(&state_);  // files may be joined
    whole = false;
    state_.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(in.data()));
    state_.avail_in = static_cast<uInt>(in.size());
    state_.next_out = reinterpret_cast<Bytef*>(out);
    state_.avail_out = static_cast<uInt>(std::min<size_t>(bytes, UINT32_MAX));
    const uInt room = state_.avail_out;
    const int code = inflate(&state_, Z_NO_FLUSH);
    if (code == Z_MEM_ERROR) throw std::bad_alloc();
    if (code != Z_OK && code != Z_STREAM_END && code != Z_BUF_ERROR)
      throw Damage{state_.msg ? state_.msg : "zlib cannot read it"};
    whole = code == Z_STREAM_END;
    in.remove_prefix(in.size() - state_.avail_in);
    return room - state_.avail_out;
  }

 private:
  z_stream state_{};
};

class Zstd : public TextStream::Unpacker {
 public:
  Zstd() : state_(ZSTD_createDStream(), ZSTD_freeDStream) {
    if (!state_) throw std::bad_alloc();
    constexpr int kMostWindow = 31;  // what `zstd --long=31` needs
    ZSTD_DCtx_setParameter(state_.get(), ZSTD_d_windowLogMax, kMostWindow);
  }

  size_t unpack(std::string_view& in, char* out, size_t bytes) override {
    if (whole && in.empty()) return 0;
    ZSTD_inBuffer from{in.data(), in.size(), 0};
    ZSTD_outBuffer to{out, bytes, 0};
    const size_t code = ZSTD_decompressStream(state_.get(), &to, &from);
    if (ZSTD_isError(code)) throw Damage{ZSTD_getErrorName(code)};
    whole = code == 0;
    in.remove_prefix(from.pos);
    return to.pos;
  }

 private:
  std::unique_ptr<ZSTD_DStream, size_t (*)(ZSTD_DStream*)> state_;
};

std::unique_ptr<TextStream::Unpacker> make_unpacker(std::string_view path) {
  const std::string_view packing = packing_of(path);
  if (packing == ".gz") return std::make_unique<Gzip>();
  if (packing == ".zst") return std::make_unique<Zstd>();
  return nullptr;
}

}  // namespace

TextStream::TextStream(const std::string& path) : path_(path), file_(path), unpacker_(make_unpacker(path)) {
  constexpr size_t kBytes = 1 << 17;
  if (unpacker_) packed_.resize(kBytes);
}

TextStream::~TextStream() = default;

bool TextStream::fill() {
  const size_t got = file_.read(at_, packed_.data(), packed_.size());
  rest_ = {packed_.data(), got};
  at_ += static_cast<int64_t>(got);
  return got > 0;
}

size_t TextStream::read(char* out, size_t bytes) {
  if (!unpacker_) {
    const size_t got = file_.read(at_, out, bytes);
    at_ += static_cast<int64_t>(got);
    return got;
  }
  try {
    for (bool more = true; more;) {
      more = !rest_.empty() || fill();
      if (const size_t got = unpacker_->unpack(rest_, out, bytes); got > 0) {
        lines_ += std::count(out, out + got, '\n');
        return got;
      }
    }
  } catch (const Damage& damage) {
    throw UserError(cat(path_, " is damaged after line ", lines_, " of its text, near byte ",
                        at_ - static_cast<int64_t>(rest_.size()), ": ", damage.what));
  }
  if (!unpacker_->whole)
    throw UserError(cat(path_, " is cut short after line ", lines_, " of its text: it ends after ", at_,
                        " bytes in the middle of what is packed"));
  return 0;
}

void TextStream::skip(int64_t bytes) {
  if (!unpacker_) {
    at_ += bytes;
    return;
  }
  std::vector<char> room(1 << 16);
  while (bytes > 0) {
    const size_t got = read(room.data(), static_cast<size_t>(std::min(bytes, std::ssize(room))));
    if (got == 0) throw UserError(cat(path_, " is shorter than it was: start again"));
    bytes -= static_cast<int64_t>(got);
  }
}

}  // namespace startrail

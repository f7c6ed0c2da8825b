#include "startrail/base/file.h"

#define XXH_INLINE_ALL
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "startrail/base/error.h"

namespace startrail {

namespace fs = std::filesystem;

OpenFile::OpenFile(std::string path) : path_(std::move(path)), descriptor_(open(path_.c_str(), O_RDONLY | O_CLOEXEC)) {
  if (descriptor_ < 0) throw_file_error(path_, "cannot be opened", errno);
}

OpenFile::~OpenFile() { close(descriptor_); }

OpenFile::State OpenFile::state() const {
  struct stat status {};
  if (fstat(descriptor_, &status) != 0) throw_file_error(path_, "cannot be read", errno);
  return {status.st_size, int64_t{status.st_mtim.tv_sec} * 1'000'000'000 + status.st_mtim.tv_nsec};
}

size_t OpenFile::read(int64_t offset, void* out, size_t bytes) const {
  size_t done = 0;
  while (done < bytes) {
    const ssize_t now =
        pread(descriptor_, static_cast<char*>(out) + done, bytes - done, offset + static_cast<int64_t>(done));
    if (now < 0 && errno == EINTR) continue;
    if (now < 0) throw_file_error(path_, "cannot be read", errno);
    if (now == 0) break;
    done += static_cast<size_t>(now);
  }
  return done;
}

WritableFile::WritableFile(const fs::path& path, Start start)
    : path_(path.string()),
      descriptor_(open(path.c_str(), O_WRONLY | O_CLOEXEC | (start == Start::empty ? O_CREAT | O_TRUNC : 0), 0644)) {
  if (descriptor_ < 0) throw_file_error(path_, "cannot be opened", errno);
}

WritableFile::~WritableFile() { close(descriptor_); }

void WritableFile::write(const void* data, size_t bytes, int64_t offset) const {
  for (const char* at = static_cast<const char*>(data); bytes > 0;) {
    const ssize_t done = pwrite(descriptor_, at, bytes, offset);
    if (done < 0 && errno == EINTR) continue;
    if (done <= 0) throw_file_error(path_, "cannot be written", errno);
    at += done;
    offset += done;
    bytes -= static_cast<size_t>(done);
  }
}

void WritableFile::resize(int64_t bytes) const {
  if (ftruncate(descriptor_, bytes) != 0) throw_file_error(path_, "cannot be made as large as it must be", errno);
}

void WritableFile::flush() const {
  if (fsync(descriptor_) != 0) throw_file_error(path_, "cannot be flushed to disk", errno);
}

void write_text(const fs::path& file, const std::string& text) {
  const WritableFile out(file, WritableFile::Start::empty);
  out.write(text.data(), text.size(), 0);
  out.flush();
}

void sync_folder(const fs::path& folder) {
  const int descriptor = open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (descriptor < 0) throw_file_error(folder.string(), "cannot be opened", errno);
  const int code = fsync(descriptor) == 0 ? 0 : errno;
  close(descriptor);
  if (code != 0) throw_file_error(folder.string(), "cannot be flushed to disk", code);
}

void check_writable(const fs::path& file, const std::string& name) {
  const bool fresh = !fs::exists(file);
  if (!std::ofstream(file, std::ios::app)) throw_file_error(cat(name, " ", file.string()), "cannot be written", errno);
  if (fresh) fs::remove(file);
}

nlohmann::json read_json(const fs::path& file) {
  std::ifstream in(file);
  if (!in || fs::is_directory(file)) throw UserError(cat(file.string(), " cannot be opened as a file"));
  try {
    return nlohmann::json::parse(in);
  } catch (const nlohmann::json::parse_error& error) {  // its own words may quote the whole file
    throw UserError(cat(file.string(), " is not whole JSON: it cannot be read beyond byte ", error.byte));
  } catch (const nlohmann::json::exception&) {
    throw UserError(cat(file.string(), " is not whole JSON: a number in it is too large"));
  }
}

std::string checksum(const void* data, size_t bytes) { return hex_text(XXH3_64bits(data, bytes)); }

std::string checksum(const fs::path& path) { return checksum(path, 0, static_cast<int64_t>(fs::file_size(path))); }

std::string checksum(const fs::path& path, int64_t begin, int64_t end) {
  constexpr int64_t kPiece = 1 << 20;
  const OpenFile file(path.string());
  std::vector<char> piece(static_cast<size_t>(std::clamp<int64_t>(end - begin, 0, kPiece)));
  const std::unique_ptr<XXH3_state_t, decltype(&XXH3_freeState)> state(XXH3_createState(), XXH3_freeState);
  XXH3_64bits_reset(state.get());
  bool whole = begin >= 0 && begin <= end && end <= file.state().bytes;
  for (int64_t at = begin; whole && at < end; at += kPiece) {
    const auto bytes = static_cast<size_t>(std::min(kPiece, end - at));
    whole = file.read(at, piece.data(), bytes) == bytes;
    XXH3_64bits_update(state.get(), piece.data(), bytes);
  }
  if (!whole)
    throw UserError(cat(path.string(), " is truncated: it has ", file.state().bytes, " bytes and should have ", end));
  return hex_text(XXH3_64bits_digest(state.get()));
}

}  // namespace startrail

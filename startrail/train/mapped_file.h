// A file mapped into memory, read only: what is not touched costs neither memory nor reading. Used for tensors and
// latents; not for files that others may shorten meanwhile, because touching what is gone ends the process.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>

namespace startrail {

class MappedFile {
 public:
  // UserError naming the file when it cannot be opened, ClusterError when the machine fails (throw_file_error).
  explicit MappedFile(const std::filesystem::path& path);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  const char* data() const { return static_cast<const char*>(data_); }  // nullptr for an empty file
  size_t size() const { return size_; }
  int64_t time_ns() const { return time_ns_; }  // of its last change, since 1970

 private:
  void* data_ = nullptr;
  size_t size_ = 0;
  int64_t time_ns_ = 0;
};

}  // namespace startrail

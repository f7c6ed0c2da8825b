// A file mapped into memory, read only: what is not touched costs neither memory nor reading. Used for weights;
// not for files that others may shorten meanwhile, because touching what is gone ends the process.
#pragma once

#include <cstddef>
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

 private:
  void* data_ = nullptr;
  size_t size_ = 0;
};

}  // namespace startrail

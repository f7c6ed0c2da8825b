#include "startrail/train/store/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

#include "startrail/base/error.h"

namespace startrail {

MappedFile::MappedFile(const std::filesystem::path& path) {
  const int handle = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (handle < 0) throw_file_error(path.string(), "cannot be opened", errno);
  struct stat status {};
  const char* failed = nullptr;
  if (fstat(handle, &status) != 0) {
    failed = "cannot be read";
  } else if (status.st_size > 0) {
    void* data = mmap(nullptr, static_cast<size_t>(status.st_size), PROT_READ, MAP_PRIVATE, handle, 0);
    if (data == MAP_FAILED)
      failed = "cannot be mapped";
    else
      data_ = data;
  }
  const int code = errno;
  close(handle);
  if (failed) throw_file_error(path.string(), failed, code);
  size_ = static_cast<size_t>(status.st_size);
}

MappedFile::~MappedFile() {
  if (data_) munmap(data_, size_);
}

}  // namespace startrail

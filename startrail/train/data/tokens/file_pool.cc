#include "startrail/train/data/tokens/file_pool.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "startrail/base/error.h"

namespace startrail {

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
    if (now < 0) throw ClusterError(cat(path_, " cannot be read: ", std::strerror(errno)));
    if (now == 0) break;
    done += static_cast<size_t>(now);
  }
  return done;
}

FilePool::FilePool(std::filesystem::path root, std::vector<std::string> names)
    : root_(std::move(root)), names_(std::move(names)) {}

std::string FilePool::path(size_t file) const { return (root_ / names_[file]).string(); }

void FilePool::read(size_t file, int64_t offset, void* out, size_t bytes) const {
  const size_t got = opened(file)->read(offset, out, bytes);
  if (got < bytes)
    throw UserError(cat("data file ", path(file), " shrank while in use: bytes ", offset, " to ",
                        offset + static_cast<int64_t>(bytes), " are needed, but it ends before; restore it"));
}

std::shared_ptr<const OpenFile> FilePool::opened(size_t file) const {
  Slot& slot = slots_[file % kSlots];
  {
    const std::lock_guard lock(mutex_);
    if (slot.open && slot.file == file) return slot.open;
  }
  // Outside of the lock: on a network disk this takes a while. Two threads may open the same file; one is dropped.
  auto open = std::make_shared<const OpenFile>(path(file));
  const std::lock_guard lock(mutex_);
  slot = {file, open};
  return open;
}

}  // namespace startrail

#include "startrail/train/data/tokens/file_pool.h"

#include <utility>

#include "startrail/base/error.h"

namespace startrail {

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

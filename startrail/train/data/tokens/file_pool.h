// Reading a set of files at any place, from many threads, with a bounded number of them open. Used for texts
// and tokens; knows nothing of what is in them.
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "startrail/base/file.h"

namespace startrail {

class FilePool {
 public:
  FilePool(std::filesystem::path root, std::vector<std::string> names);

  const std::string& name(size_t file) const { return names_[file]; }  // relative to the root
  std::string path(size_t file) const;

  // Exactly `bytes` bytes. UserError, naming the file, when it is gone or has become shorter.
  void read(size_t file, int64_t offset, void* out, size_t bytes) const;

 private:
  static constexpr size_t kSlots = 64;
  struct Slot {
    size_t file = 0;
    std::shared_ptr<const OpenFile> open;
  };
  std::shared_ptr<const OpenFile> opened(size_t file) const;

  std::filesystem::path root_;
  std::vector<std::string> names_;
  mutable std::mutex mutex_;
  mutable std::array<Slot, kSlots> slots_;  // file i is kept open in slot i % kSlots until another needs the slot
};

}  // namespace startrail

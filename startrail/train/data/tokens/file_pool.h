// Reading a set of files at any place, from many threads, with a bounded number of them open. Used for texts,
// tokens and latents; knows nothing of what is in them.
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

namespace startrail {

// An open file. Read with pread, not mapped: a file that shrinks under a mapping ends the process with SIGBUS whatever
// was checked before, here it is a short read; and the copy out of the page cache is small beside what uses the data.
class OpenFile {
 public:
  explicit OpenFile(std::string path);  // UserError when it cannot be opened
  ~OpenFile();
  OpenFile(const OpenFile&) = delete;
  OpenFile& operator=(const OpenFile&) = delete;

  struct State {
    int64_t bytes, time_ns;  // its size, and its last change since 1970
  };
  State state() const;

  // Up to `bytes` bytes from `offset` on; how many there were before the file ended. ClusterError when the disk fails.
  size_t read(int64_t offset, void* out, size_t bytes) const;

 private:
  std::string path_;
  int descriptor_;
};

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

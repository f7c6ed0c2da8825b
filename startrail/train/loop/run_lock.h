// Keeps a second trainer out of a run's folder.
#pragma once

#include <filesystem>

namespace startrail {

class RunLock {
 public:
  // UserError when another process holds it, or the folder cannot be written. The system lets go of it with the
  // process, however that ends.
  explicit RunLock(const std::filesystem::path& folder);
  ~RunLock();
  RunLock(const RunLock&) = delete;
  RunLock& operator=(const RunLock&) = delete;

 private:
  int file_;
};

}  // namespace startrail

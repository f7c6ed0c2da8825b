#include "startrail/train/loop/run_lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>

#include "startrail/base/error.h"
#include "startrail/train/store/run_files.h"

namespace startrail {

RunLock::RunLock(const std::filesystem::path& folder)
    : file_(open((folder / kLockFile).c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644)) {
  if (file_ < 0) throw_file_error(folder.string(), "cannot be written", errno);
  if (flock(file_, LOCK_EX | LOCK_NB) == 0 || errno != EWOULDBLOCK) return;  // or a file system without locks
  close(file_);
  throw UserError(cat(folder.string(), " is being trained in by another process: let it end or stop it first, or ",
                      "set run.folder to another folder"));
}

RunLock::~RunLock() { close(file_); }

}  // namespace startrail

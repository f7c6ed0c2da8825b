// A piece of memory that the processes of one host share while they live: their turns at computing, and who of them has
// spoken. It has no name in any file system, so nothing is left when they are killed.
#pragma once

#include <semaphore.h>

#include <memory>
#include <string>

namespace startrail {

class SharedPage {
 public:
  // Made by one process: `slots` may compute at once, and there are `flags` flags, all down. `word` is known to those
  // who share it. ClusterError when the system gives no memory.
  SharedPage(const std::string& word, int slots, int flags);
  // The page that a process of this host says is at `place`; nothing where it cannot be opened, such as from another
  // container.
  static std::unique_ptr<SharedPage> open(const std::string& place, const std::string& word);
  ~SharedPage();

  // Where others find it, until this process has called close_place().
  std::string place() const;
  void close_place();

  // How many may compute at once. Lives as long as what was returned.
  std::shared_ptr<sem_t> turns() const;
  // Raises a flag; true for the first process that does.
  bool raise(int flag) const;

 private:
  struct Content;
  struct Mapping;
  explicit SharedPage(std::shared_ptr<Mapping> mapping);

  std::shared_ptr<Mapping> mapping_;
  int file_ = -1;
};

}  // namespace startrail

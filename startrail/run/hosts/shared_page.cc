#include "startrail/run/hosts/shared_page.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <new>

#include "startrail/base/error.h"

namespace startrail {

struct SharedPage::Content {
  char word[64];
  sem_t turns;
  int flags;

  // They follow it.
  std::atomic<char>* flag(int index) { return reinterpret_cast<std::atomic<char>*>(this + 1) + index; }
  static size_t bytes(int flags) { return sizeof(Content) + static_cast<size_t>(flags); }
};

struct SharedPage::Mapping {
  Content* content;
  size_t bytes;
  Mapping(int file, size_t size)
      : content(static_cast<Content*>(mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0))), bytes(size) {
    if (content == MAP_FAILED) throw ClusterError(cat("memory cannot be shared: ", std::strerror(errno)));
  }
  ~Mapping() { munmap(content, bytes); }
  Mapping(const Mapping&) = delete;
};

SharedPage::SharedPage(std::shared_ptr<Mapping> mapping) : mapping_(std::move(mapping)) {}

SharedPage::SharedPage(const std::string& word, int slots, int flags) : file_(memfd_create("startrail", MFD_CLOEXEC)) {
  const size_t bytes = Content::bytes(flags);
  if (file_ < 0 || ftruncate(file_, static_cast<off_t>(bytes)) != 0) {
    close_place();
    throw ClusterError(cat("memory cannot be shared: ", std::strerror(errno)));
  }
  mapping_ = std::make_shared<Mapping>(file_, bytes);  // all zero, so that all flags are down
  Content* content = mapping_->content;
  STARTRAIL_CHECK(word.size() < sizeof content->word, "a long word");
  std::memcpy(content->word, word.data(), word.size());
  content->flags = flags;
  sem_init(&content->turns, /*pshared=*/1, static_cast<unsigned>(slots));
}

std::unique_ptr<SharedPage> SharedPage::open(const std::string& place, const std::string& word) {
  const int file = ::open(place.c_str(), O_RDWR | O_CLOEXEC | O_NONBLOCK);
  if (file < 0) return nullptr;
  // Elsewhere the place may be anything.
  struct stat found {};
  std::shared_ptr<Mapping> mapping;
  if (fstat(file, &found) == 0 && S_ISREG(found.st_mode) && found.st_size >= static_cast<off_t>(Content::bytes(0)))
    mapping = std::make_shared<Mapping>(file, static_cast<size_t>(found.st_size));
  close(file);
  if (!mapping || strncmp(mapping->content->word, word.c_str(), sizeof mapping->content->word) != 0 ||
      Content::bytes(mapping->content->flags) != mapping->bytes)
    return nullptr;
  return std::unique_ptr<SharedPage>(new SharedPage(std::move(mapping)));
}

SharedPage::~SharedPage() { close_place(); }

std::string SharedPage::place() const { return cat("/proc/", getpid(), "/fd/", file_); }

void SharedPage::close_place() {
  if (file_ >= 0) close(file_);
  file_ = -1;
}

std::shared_ptr<sem_t> SharedPage::turns() const { return {mapping_, &mapping_->content->turns}; }

bool SharedPage::raise(int flag) const {
  STARTRAIL_CHECK(flag >= 0 && flag < mapping_->content->flags, "flag ", flag);
  return mapping_->content->flag(flag)->exchange(1) == 0;
}

}  // namespace startrail

// For tests: the text a call fails with, so that messages can be asserted on, and a folder that is gone afterwards. Not
// used by the library.
#pragma once

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>

#include "startrail/base/error.h"

namespace startrail {

// What the error says that `call` throws, or "no error".
template <class Error = UserError, class Call>
std::string error_of(const Call& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

class TempFolder {
 public:
  TempFolder() {
    std::string name = (std::filesystem::temp_directory_path() / "startrail-XXXXXX").string();
    STARTRAIL_CHECK(mkdtemp(name.data()) != nullptr, name);
    path_ = name;
  }
  ~TempFolder() { std::filesystem::remove_all(path_); }
  TempFolder(const TempFolder&) = delete;
  TempFolder& operator=(const TempFolder&) = delete;

  std::string path(std::string_view name = "") const { return name.empty() ? path_.string() : (path_ / name).string(); }

  // Writes a file and the folders it is in; gives its path.
  std::string write(std::string_view name, std::string_view content) const {
    std::filesystem::create_directories((path_ / name).parent_path());
    std::ofstream out(path_ / name, std::ios::binary | std::ios::trunc);
    out.write(content.data(), static_cast<std::streamsize>(content.size()));
    out.close();
    STARTRAIL_CHECK(out.good(), name);
    return path(name);
  }

 private:
  std::filesystem::path path_;
};

}  // namespace startrail

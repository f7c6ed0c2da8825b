// For tests: a folder that is gone afterwards, and files in it. Not used by the library.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>
#include <vector>

#include "startrail/base/error.h"

namespace startrail {

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

// The bytes of a token file without a header.
inline std::string token_bytes(const std::vector<uint16_t>& tokens) {
  return {reinterpret_cast<const char*>(tokens.data()), tokens.size() * sizeof(uint16_t)};
}

}  // namespace startrail

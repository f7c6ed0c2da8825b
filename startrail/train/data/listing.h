// Which files the data is made of, found once for a job: where ranks are processes, rank 0 looks and tells the others,
// so that all have the same list however their disks answer, and a large folder is walked through once.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <string>

namespace startrail {

struct Listing {
  // What `make` says on rank 0, on every process; empty: every process looks for itself.
  std::function<std::string(const std::function<std::string()>& make)> once = {};
  bool check = false;  // look whether the files of the list are here and as long as it says
};

// A list as text and back. Not JSON's own text: names of files may be any bytes.
std::string pack_list(const nlohmann::json& list);
nlohmann::json unpack_list(const std::string& text);

// UserError unless the file is there with at least, or `exactly`, this many bytes.
void check_listed(const std::filesystem::path& file, int64_t bytes, bool exactly);

}  // namespace startrail

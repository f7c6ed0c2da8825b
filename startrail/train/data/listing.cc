#include "startrail/train/data/listing.h"

#include <nlohmann/json.hpp>

#include "startrail/base/error.h"
#include "startrail/base/system.h"

namespace startrail {

std::string pack_list(const nlohmann::json& list) {
  const std::vector<uint8_t> bytes = nlohmann::json::to_msgpack(list);
  return {bytes.begin(), bytes.end()};
}

nlohmann::json unpack_list(const std::string& text) { return nlohmann::json::from_msgpack(text); }

void check_listed(const std::filesystem::path& file, int64_t bytes, bool exactly) {
  std::error_code error;
  const auto there = static_cast<int64_t>(std::filesystem::file_size(file, error));
  const std::string host = host_name();
  if (error)
    throw UserError(cat("the data is not the same on every host: on ", host, " ", file.string(), " cannot be read (",
                        error.message(), "); put it on a folder that all hosts share, or copy it to the same path"));
  if (exactly ? there != bytes : there < bytes)
    throw UserError(cat("the data is not the same on every host: on ", host, " ", file.string(), " has ", there,
                        " bytes and at rank 0 ", bytes, "; put it on a folder that all hosts share, or copy it again"));
}

}  // namespace startrail

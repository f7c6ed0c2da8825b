// For tests: files of tokens. Not used by the library.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace startrail {

// The bytes of a token file without a header.
inline std::string token_bytes(const std::vector<uint16_t>& tokens) {
  return {reinterpret_cast<const char*>(tokens.data()), tokens.size() * sizeof(uint16_t)};
}

}  // namespace startrail

// What a user can do about a disk that is full, said where the command knows it.
#pragma once

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string>

#include "startrail/base/error.h"
#include "startrail/base/text.h"

namespace startrail::cli {

// What `body` gives; `advice` follows its error where the reason is that there is no room for a file.
template <class Body>
auto advise_on_room(const std::string& advice, const Body& body) {
  try {
    return body();
  } catch (const ClusterError& error) {
    const std::string what = error.what();
    const auto tells = [&](int code) { return what.ends_with(std::strerror(code)); };
    if (!std::ranges::any_of(std::initializer_list<int>{ENOSPC, EDQUOT, EFBIG}, tells)) throw;
    throw ClusterError(cat(what, ": ", advice));
  }
}

}  // namespace startrail::cli

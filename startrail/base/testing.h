// For tests: the text a call fails with, so that messages can be asserted on. Not used by the library.
#pragma once

#include <string>

#include "startrail/base/error.h"

namespace startrail {

// What the UserError says that `call` throws, or "no error".
template <class Call>
std::string error_of(const Call& call) {
  try {
    call();
  } catch (const UserError& error) {
    return error.what();
  }
  return "no error";
}

}  // namespace startrail

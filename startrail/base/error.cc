#include "startrail/base/error.h"

#include <cerrno>
#include <cstring>

namespace startrail {

void throw_file_error(const std::string& file, const char* what, int code) {
  const std::string message = cat(file, " ", what, ": ", std::strerror(code));
  for (int machine : {EIO, ENOSPC, EDQUOT, EFBIG, EMFILE, ENFILE, ENOMEM})
    if (code == machine) throw ClusterError(message);
  throw UserError(message);
}

}  // namespace startrail

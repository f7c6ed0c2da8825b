#include "startrail/base/version.h"

namespace startrail {

const char* const kVersion = STARTRAIL_VERSION;

}  // namespace startrail

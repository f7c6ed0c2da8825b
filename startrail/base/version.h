// The project's version, as CMakeLists.txt has it: for --version, and for what is written into files.
#pragma once

namespace startrail {

extern const char* const kVersion;

}  // namespace startrail

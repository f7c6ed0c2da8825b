// The page's files as texts; cmake/Page.cmake makes source.cc of them in the build folder.
#pragma once

namespace startrail::cli {

extern const char *const kPageSource, *const kStyleSource, *const kScriptSource;
extern const char *const kStyleSum, *const kScriptSum;  // SHA-256, in hexadecimal digits

}  // namespace startrail::cli

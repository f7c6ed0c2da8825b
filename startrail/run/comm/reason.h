// What an exception says, without the stack of libtorch's own.
#pragma once

#include <c10/util/Exception.h>

#include <exception>
#include <string>

namespace startrail {

inline std::string reason_of(const std::exception& error) {
  const auto* torch_error = dynamic_cast<const c10::Error*>(&error);
  std::string text = torch_error ? torch_error->what_without_backtrace() : error.what();
  if (const size_t end = text.find('\n'); torch_error && end != std::string::npos) text.resize(end);
  return text;
}

inline std::string reason_of(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const std::exception& known) {
    return reason_of(known);
  } catch (...) {
    return "unknown error";
  }
}

}  // namespace startrail

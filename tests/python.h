// Runs a Python script of tests/ with what is in .venv, for comparisons with other libraries.
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <string>

#include "startrail/base/text.h"

namespace startrail {

inline void python(const std::string& script_and_arguments) {
  const std::string command = cat("PYTHONPATH='", STARTRAIL_PYTHON_PATH, "' HF_HUB_OFFLINE=1 '", STARTRAIL_PYTHON,
                                  "' tests/", script_and_arguments);
  ASSERT_EQ(std::system(command.c_str()), 0) << command;
}

}  // namespace startrail

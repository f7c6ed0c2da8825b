# startrail_depend(<CMake package> <Debian package>): find_package that says what to install when it is missing.
# A macro, because find_package sets variables that belong to the caller.
macro(startrail_depend package debian)
  find_package(${package} QUIET)
  if(NOT ${package}_FOUND)
    message(FATAL_ERROR "${package} is missing. Run `make setup`, or on Debian and Ubuntu: apt-get install ${debian}")
  endif()
endmacro()

# startrail_depend(<CMake package> <Debian package>): find_package that says what to install when it is missing.
# A macro, because find_package sets variables that belong to the caller.
macro(startrail_depend package debian)
  find_package(${package} QUIET)
  if(NOT ${package}_FOUND)
    message(FATAL_ERROR "${package} is missing. Run `make setup`, or on Debian and Ubuntu: apt-get install ${debian}")
  endif()
endmacro()

# startrail_depend_files(<Debian package> <header> [<library>]): the same for what has no package for CMake. The library's
# file is STARTRAIL_LIBRARY_<library>.
macro(startrail_depend_files debian header)
  find_path(STARTRAIL_HEADER_${header} ${header})
  if(NOT "${ARGN}" STREQUAL "")
    find_library(STARTRAIL_LIBRARY_${ARGN} ${ARGN})
  endif()
  if(NOT STARTRAIL_HEADER_${header} OR (NOT "${ARGN}" STREQUAL "" AND NOT STARTRAIL_LIBRARY_${ARGN}))
    message(FATAL_ERROR "${header} or its library is missing. Run `make setup`, or on Debian and Ubuntu: apt-get install ${debian}")
  endif()
endmacro()

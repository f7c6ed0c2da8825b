# startrail_depend(<CMake package> <Debian package>): find_package that says what to install when it is missing.
# A macro, because find_package sets variables that belong to the caller.
macro(startrail_depend package debian)
  find_package(${package} QUIET)
  if(NOT ${package}_FOUND)
    message(FATAL_ERROR "${package} is missing. Run `make setup`, or on Debian and Ubuntu: apt-get install ${debian}")
  endif()
endmacro()

# startrail_depend_library(<library> <header> <Debian package>): the same for a library without a package for CMake. Its
# file is STARTRAIL_LIBRARY_<library>.
macro(startrail_depend_library library header debian)
  find_library(STARTRAIL_LIBRARY_${library} ${library})
  find_path(STARTRAIL_HEADER_${library} ${header})
  if(NOT STARTRAIL_LIBRARY_${library} OR NOT STARTRAIL_HEADER_${library})
    message(FATAL_ERROR "${library} is missing. Run `make setup`, or on Debian and Ubuntu: apt-get install ${debian}")
  endif()
endmacro()

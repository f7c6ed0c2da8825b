# The attention kernel's processor levels: one source, compiled for each; which one runs is decided at run time. They
# contain no libtorch, so the precompiled header is not for them.
set(_levels ${PROJECT_SOURCE_DIR}/startrail/run/kernel/cpu/level_)
set(_options -ffp-contract=fast -fno-math-errno)
# GCC's stack for finding uses after return is not aligned for vectors of 64 bytes (its bug 110027).
if(CMAKE_CXX_FLAGS MATCHES "fsanitize=address" AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  list(APPEND _options --param=asan-use-after-return=0)
endif()
set(_avx512 -mavx512f -mavx512bw -mavx512vl -mavx512dq -mfma)
set_source_files_properties(
  ${_levels}portable.cc ${_levels}avx2.cc ${_levels}avx512.cc ${_levels}avx512_bf16.cc
  PROPERTIES COMPILE_OPTIONS "${_options}" SKIP_PRECOMPILE_HEADERS ON)
if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
  set_source_files_properties(${_levels}avx2.cc PROPERTIES COMPILE_OPTIONS "${_options};-mavx2;-mfma")
  set_source_files_properties(${_levels}avx512.cc PROPERTIES COMPILE_OPTIONS "${_options};${_avx512}")
  set_source_files_properties(
    ${_levels}avx512_bf16.cc PROPERTIES COMPILE_OPTIONS "${_options};${_avx512};-mavx512bf16")
endif()

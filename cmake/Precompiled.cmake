# libtorch's headers, parsed once for all targets that use them: they are most of a torch file's compile time.
# Only a build matter: sources include what they use and compile without it.
file(CONFIGURE OUTPUT ${PROJECT_BINARY_DIR}/precompiled.cc CONTENT "// The precompiled header needs one source.\n")
add_library(startrail_precompiled OBJECT ${PROJECT_BINARY_DIR}/precompiled.cc)
target_precompile_headers(
  startrail_precompiled PRIVATE <ATen/ATen.h> <torch/csrc/autograd/custom_function.h>
  <torch/csrc/distributed/c10d/Backend.hpp>)
target_compile_features(startrail_precompiled PRIVATE cxx_std_20)
target_link_libraries(startrail_precompiled PRIVATE startrail_torch startrail_flags)

# Compiling a torch file takes up to 2 GB: many cores with little memory would swap, so only so many run at once.
cmake_host_system_information(RESULT jobs QUERY NUMBER_OF_LOGICAL_CORES)
cmake_host_system_information(RESULT memory_mb QUERY TOTAL_PHYSICAL_MEMORY)
if(EXISTS /sys/fs/cgroup/memory.max)  # inside a container the limit is the container's
  file(STRINGS /sys/fs/cgroup/memory.max limit_bytes)
  if(limit_bytes MATCHES "^[0-9]+$")
    math(EXPR limit_mb "${limit_bytes} / 1048576")
    if(limit_mb LESS memory_mb)
      set(memory_mb ${limit_mb})
    endif()
  endif()
endif()
math(EXPR fit "${memory_mb} / 2048")
if(fit LESS 1)
  set(fit 1)
endif()
if(fit LESS jobs)
  set(jobs ${fit})
endif()
set_property(GLOBAL PROPERTY JOB_POOLS torch=${jobs})

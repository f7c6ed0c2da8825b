# One imported target, startrail_torch, from a torch wheel's include/ and lib/. Used by this build and, installed beside
# StarTrailConfig.cmake, by projects that link StarTrail. Not find_package(Torch): a CUDA wheel's configuration stops
# where no CUDA toolkit is installed, although nothing here needs one.
# Where torch is: -DTORCH_DIR=, else the environment's TORCH_DIR, else STARTRAIL_TORCH_FALLBACK (set by
# StarTrailConfig.cmake), else for `pip install` the environment that pip installs into, else .venv, where `make setup`
# puts it.
if(TARGET startrail_torch)
  return()
endif()

set(TORCH_DIR "$ENV{TORCH_DIR}" CACHE PATH "The torch folder: a wheel's site-packages/torch, or an unpacked libtorch")
set(_torch "${TORCH_DIR}")
if(NOT _torch)
  set(_torch "${STARTRAIL_TORCH_FALLBACK}")
endif()
if(NOT _torch AND SKBUILD)
  # Also from an isolated build, which hides the packages of this environment but not where they are.
  execute_process(COMMAND "${Python_EXECUTABLE}" -c "import sysconfig; print(sysconfig.get_path('platlib'))"
                  OUTPUT_VARIABLE _packages OUTPUT_STRIP_TRAILING_WHITESPACE)
  if(NOT EXISTS "${_packages}/torch/include/ATen/ATen.h")
    message(
      FATAL_ERROR "There is no torch in ${_packages}, and StarTrail is built for the one that will run it. "
                  "pip install torch==2.13.0 first; or give TORCH_DIR=<site-packages/torch>, or --no-build-isolation")
  endif()
  set(_torch "${_packages}/torch")
elseif(NOT _torch)
  file(GLOB _torch LIST_DIRECTORIES true "${CMAKE_SOURCE_DIR}/.venv/lib/python3*/site-packages/torch")
endif()
list(LENGTH _torch _count)
if(_count EQUAL 0)
  message(
    FATAL_ERROR "libtorch is missing. Run `make setup`, which puts it into .venv, or pass -DTORCH_DIR=<the torch folder>")
elseif(_count GREATER 1)
  message(FATAL_ERROR "More than one torch in .venv: ${_torch}. Remove .venv and run `make setup`")
endif()
foreach(_file include/ATen/ATen.h include/torch/headeronly/version.h lib/libtorch.so lib/libtorch_cpu.so lib/libc10.so)
  if(NOT EXISTS "${_torch}/${_file}")
    message(
      FATAL_ERROR "${_torch} has no ${_file}, so it is no usable torch 2.13. Run `make setup`, or pass another -DTORCH_DIR=")
  endif()
endforeach()

file(STRINGS "${_torch}/include/torch/headeronly/version.h" _lines REGEX "define TORCH_VERSION_(MAJOR|MINOR) ")
string(REGEX REPLACE "[^0-9;]" "" _version "${_lines}")
string(REPLACE ";" "." _version "${_version}")
if(NOT _version STREQUAL "2.13")
  message(
    FATAL_ERROR "${_torch} is torch ${_version}, but StarTrail is written for 2.13, since c10d differs between them. "
                "pip install 'torch==2.13.*', or pass another -DTORCH_DIR=")
endif()
message(STATUS "torch ${_version}: ${_torch}")

set(_libraries "${_torch}/lib/libtorch.so" "${_torch}/lib/libtorch_cpu.so" "${_torch}/lib/libc10.so")
set(_options "")
if(EXISTS "${_torch}/lib/libtorch_cuda.so")
  list(APPEND _libraries "${_torch}/lib/libtorch_cuda.so" "${_torch}/lib/libc10_cuda.so")
  # No symbol of ours names libtorch_cuda: it registers its kernels when loaded, so the linker must not drop it. What it
  # needs in turn (cuBLAS and so on) lies in other wheels and is found by its own rpath at run time.
  set(_options LINKER:--no-as-needed,--allow-shlib-undefined)
endif()

# at::parallel_for is serial in a file compiled without -fopenmp, so every user of this target gets the flag. Linked is
# the wheel's own libgomp by path, and -fopenmp is no link flag: two OpenMP runtimes in one process would mean two
# thread pools. A wheel without one was built against the system's.
file(GLOB _openmp "${_torch}/lib/libgomp*.so*" "${_torch}/../torch.libs/libgomp*.so*")
if(NOT _openmp)
  set(_openmp gomp)
endif()
find_package(Threads REQUIRED)

add_library(startrail_torch INTERFACE IMPORTED GLOBAL)
set_target_properties(
  startrail_torch PROPERTIES
  INTERFACE_SYSTEM_INCLUDE_DIRECTORIES "${_torch}/include;${_torch}/include/torch/csrc/api/include"
  INTERFACE_INCLUDE_DIRECTORIES "${_torch}/include;${_torch}/include/torch/csrc/api/include"
  INTERFACE_COMPILE_OPTIONS -fopenmp
  INTERFACE_LINK_OPTIONS "${_options}"
  INTERFACE_LINK_LIBRARIES "${_libraries};${_openmp};Threads::Threads")
set(STARTRAIL_TORCH_USED "${_torch}")
set(STARTRAIL_TORCH_RPATH "${_torch}/lib")  # for programs that are installed
if(EXISTS "${_torch}/../torch.libs")
  list(APPEND STARTRAIL_TORCH_RPATH "${_torch}/../torch.libs")
endif()

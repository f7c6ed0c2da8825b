# How a folder becomes targets. Sources are globbed: <folder>/**/*.cc is the library, *_test.cc beside them its tests,
# *_long_test.cc the slow ones (ctest label `long`). All tests also carry their folder's name as a label.

# What every target compiles with. -fPIC is a plain option and not CMake's property, because the property gives
# executables -fPIE, and then they could not share the libraries' precompiled header.
# GCC 12 warns of overruns inside std::string where there are none (its bugs 105329 and 105651). Files say their names as
# they are called here, whatever folder of this machine they lie in.
add_library(startrail_flags INTERFACE)
target_compile_options(
  startrail_flags INTERFACE -Wall -Wextra -fPIC -fmacro-prefix-map=${PROJECT_SOURCE_DIR}/= $<$<BOOL:${STARTRAIL_WERROR}>:-Werror>
                            $<$<CXX_COMPILER_ID:GNU>:-Wno-array-bounds;-Wno-stringop-overflow>)

# startrail_library(<name> LINKS <targets>): startrail/<name>/ as the static library startrail_<name>, alias
# StarTrail::<name>, and its tests. A folder with headers only becomes an INTERFACE library.
function(startrail_library name)
  cmake_parse_arguments(arg "" "" LINKS ${ARGN})
  set(folder ${PROJECT_SOURCE_DIR}/startrail/${name})
  set(target startrail_${name})
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS ${folder}/*.cc)
  file(GLOB_RECURSE tests CONFIGURE_DEPENDS ${folder}/*_test.cc)
  if(tests)
    list(REMOVE_ITEM sources ${tests})
  endif()

  if(sources)
    add_library(${target} STATIC ${sources})
    set(scope PUBLIC)
    _startrail_compile(${target} LINKS ${arg_LINKS})
  else()
    add_library(${target} INTERFACE)
    set(scope INTERFACE)
  endif()
  add_library(StarTrail::${name} ALIAS ${target})
  set_target_properties(${target} PROPERTIES EXPORT_NAME ${name})
  target_compile_features(${target} ${scope} cxx_std_20)
  target_include_directories(
    ${target} ${scope} $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}> $<INSTALL_INTERFACE:include>)
  target_link_libraries(${target} ${scope} ${arg_LINKS})
  set_property(GLOBAL APPEND PROPERTY STARTRAIL_LIBRARIES ${target})

  set(long_tests ${tests})
  list(FILTER tests EXCLUDE REGEX "_long_test\\.cc$")
  list(FILTER long_tests INCLUDE REGEX "_long_test\\.cc$")
  _startrail_test(${name}_test LABELS ${name} SOURCES ${tests} LINKS ${target} ${arg_LINKS})
  _startrail_test(${name}_long_test LABELS ${name} long SOURCES ${long_tests} LINKS ${target} ${arg_LINKS})
endfunction()

# startrail_spanning_tests(LINKS <targets>): tests/, for what no single folder can test alone.
function(startrail_spanning_tests)
  cmake_parse_arguments(arg "" "" LINKS ${ARGN})
  file(GLOB tests CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/tests/*_test.cc)
  file(GLOB helpers CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/tests/*.cc)
  if(tests)
    list(REMOVE_ITEM helpers ${tests})
  endif()
  set(long_tests ${tests})
  list(FILTER tests EXCLUDE REGEX "_long_test\\.cc$")
  list(FILTER long_tests INCLUDE REGEX "_long_test\\.cc$")
  _startrail_test(tests_all LABELS tests SOURCES ${tests} HELPERS ${helpers} LINKS ${arg_LINKS} startrail_torch)
  _startrail_test(
    tests_long LABELS tests long SOURCES ${long_tests} HELPERS ${helpers} LINKS ${arg_LINKS} startrail_torch)
  # They run the command; and transformers, which is in .venv, with torch beside it or wherever TORCH_DIR is.
  cmake_path(GET STARTRAIL_TORCH_USED PARENT_PATH packages)
  foreach(target tests_all tests_long)
    if(TARGET ${target} AND TARGET startrail_command)
      target_compile_definitions(
        ${target} PRIVATE STARTRAIL_COMMAND="$<TARGET_FILE:startrail_command>" STARTRAIL_PYTHON_PATH="${packages}"
                          STARTRAIL_PYTHON="${PROJECT_SOURCE_DIR}/.venv/bin/python")
      add_dependencies(${target} startrail_command)
    endif()
  endforeach()
endfunction()

# startrail_hosts_tests(LINKS <targets>): tests/hosts/, where ranks are processes. The worker is one of them; Python
# scripts start it and the command with launchers, and end them in bad ways.
function(startrail_hosts_tests)
  cmake_parse_arguments(arg "" "" LINKS ${ARGN})
  if(NOT STARTRAIL_TESTS OR NOT TARGET startrail_command)
    return()
  endif()
  add_executable(hosts_worker tests/hosts/worker.cc tests/exactness.cc)
  target_link_libraries(hosts_worker PRIVATE ${arg_LINKS} GTest::gtest)
  _startrail_compile(hosts_worker QUICK PRECOMPILED _tests LINKS startrail_torch)
  _startrail_scripts(hosts)
endfunction()

# startrail_python_tests(): tests/python/, where the Python package runs on ranks that are processes.
function(startrail_python_tests)
  if(NOT STARTRAIL_TESTS OR NOT TARGET startrail_python)
    return()
  endif()
  _startrail_scripts(python)
endfunction()

# startrail_pages_tests(): tests/pages/, where a browser looks at pages. The fast one is skipped where there is none.
function(startrail_pages_tests)
  if(NOT STARTRAIL_TESTS OR NOT TARGET startrail_command)
    return()
  endif()
  _startrail_scripts(pages)
  set_tests_properties(pages_fast PROPERTIES LABELS "pages_fast;show" SKIP_RETURN_CODE 77)
  set_tests_properties(pages_long PROPERTIES LABELS "pages_long;show")
endfunction()

# tests/<folder>/<folder>_fast.py and _long.py, each with its name as label.
function(_startrail_scripts folder)
  cmake_path(GET STARTRAIL_TORCH_USED PARENT_PATH packages)
  foreach(part ${folder}_fast ${folder}_long)
    add_test(NAME ${part} COMMAND ${PROJECT_SOURCE_DIR}/.venv/bin/python tests/${folder}/${part}.py ${PROJECT_BINARY_DIR}
             WORKING_DIRECTORY ${PROJECT_SOURCE_DIR})
    set_tests_properties(${part} PROPERTIES LABELS ${part} RUN_SERIAL TRUE ENVIRONMENT PYTHONPATH=${packages})
  endforeach()
endfunction()

# startrail_command(LINKS <targets>): cli/ as the library startrail_cli, which tests call, and the program `startrail`, at
# the top of the build folder.
function(startrail_command)
  cmake_parse_arguments(arg "" "" LINKS ${ARGN})
  set(main ${PROJECT_SOURCE_DIR}/cli/main.cc)
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/cli/*.cc)
  list(REMOVE_ITEM sources ${main})
  if(NOT sources)
    return()
  endif()
  include(Page)
  add_library(startrail_cli STATIC ${sources} ${STARTRAIL_PAGE_SOURCE})
  target_link_libraries(startrail_cli PUBLIC ${arg_LINKS})
  _startrail_compile(startrail_cli QUICK LINKS startrail_torch)
  add_executable(startrail_command ${main})
  # One rpath for the built and the installed program; CMake would otherwise pad it with an entry that means "here".
  set_target_properties(
    startrail_command PROPERTIES OUTPUT_NAME startrail RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}
                                 INSTALL_RPATH "${STARTRAIL_TORCH_RPATH}" BUILD_WITH_INSTALL_RPATH ON)
  target_link_libraries(startrail_command PRIVATE startrail_cli)
  _startrail_compile(startrail_command)
endfunction()

add_custom_target(long_tests)  # built when they are wanted, since they take a while

# One GoogleTest program from SOURCES, or nothing when there are none. Tests start in the repository's root.
# A fast program without libtorch has one ctest entry per TEST. Others are one entry: loading libtorch takes half a
# second, longer than most tests. They run alone, because their ranks are threads that want all cores; threads that wait
# give theirs away, or a busy machine would spend several times as long on them.
function(_startrail_test name)
  cmake_parse_arguments(arg "" "" "LABELS;SOURCES;HELPERS;LINKS" ${ARGN})
  if(NOT STARTRAIL_TESTS OR NOT arg_SOURCES)
    return()
  endif()
  if("long" IN_LIST arg_LABELS)
    add_executable(${name} EXCLUDE_FROM_ALL ${arg_SOURCES} ${arg_HELPERS})
    add_dependencies(long_tests ${name})
  else()
    add_executable(${name} ${arg_SOURCES} ${arg_HELPERS})
  endif()
  target_link_libraries(${name} PRIVATE ${arg_LINKS} GTest::gtest_main)
  _startrail_compile(${name} QUICK PRECOMPILED _tests LINKS ${arg_LINKS})
  if("startrail_torch" IN_LIST arg_LINKS OR "long" IN_LIST arg_LABELS)
    add_test(NAME ${name} COMMAND ${name} WORKING_DIRECTORY ${PROJECT_SOURCE_DIR})
    set_tests_properties(
      ${name} PROPERTIES LABELS "${arg_LABELS}" RUN_SERIAL TRUE ENVIRONMENT OMP_WAIT_POLICY=PASSIVE)
  else()
    include(GoogleTest)
    gtest_discover_tests(
      ${name} DISCOVERY_MODE PRE_TEST TEST_PREFIX ${arg_LABELS}/ WORKING_DIRECTORY ${PROJECT_SOURCE_DIR}
      PROPERTIES LABELS ${arg_LABELS})
  endif()
endfunction()

# Flags for a target, and for one that uses libtorch a precompiled header (Precompiled.cmake) and the memory-bound job
# pool. QUICK is for code that is compiled more often than it is run: the command and tests, which call the libraries.
function(_startrail_compile target)
  cmake_parse_arguments(arg "QUICK" "PRECOMPILED" LINKS ${ARGN})
  target_link_libraries(${target} PRIVATE $<BUILD_INTERFACE:startrail_flags>)
  if(arg_QUICK)
    target_compile_options(${target} PRIVATE $<$<CONFIG:Release>:-O1>)
  endif()
  if("startrail_torch" IN_LIST arg_LINKS)
    target_precompile_headers(${target} REUSE_FROM startrail_precompiled${arg_PRECOMPILED})
    set_target_properties(${target} PROPERTIES JOB_POOL_COMPILE torch)
    get_target_property(sources ${target} SOURCES)
    foreach(source IN LISTS sources)
      startrail_precompiled_for(${source} uses)
      if(NOT uses)
        set_source_files_properties(${source} PROPERTIES SKIP_PRECOMPILE_HEADERS ON)
      endif()
    endforeach()
  endif()
endfunction()

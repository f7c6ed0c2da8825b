# The Python package: an operator library without Python in it, the program, and Python files, together in
# build/python/startrail, where `PYTHONPATH=build/python` finds them; `pip install .` installs the same as component
# `python`. torch is loaded before the library and lies beside the package, so that no path of this machine is in it.
file(GLOB _operators CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/python/operators/*.cc)
file(GLOB _package CONFIGURE_DEPENDS RELATIVE ${PROJECT_SOURCE_DIR}/python ${PROJECT_SOURCE_DIR}/python/startrail/*.py
     ${PROJECT_SOURCE_DIR}/python/startrail/py.typed)
set(_folder ${PROJECT_BINARY_DIR}/python/startrail)
cmake_path(GET STARTRAIL_TORCH_USED PARENT_PATH _packages)  # torch's headers say theirs in its errors
target_compile_options(startrail_flags INTERFACE -fmacro-prefix-map=${_packages}/=)

add_library(startrail_operators MODULE ${_operators})
target_include_directories(startrail_operators PRIVATE ${PROJECT_SOURCE_DIR})
target_link_libraries(startrail_operators PRIVATE startrail_run startrail_torch)
target_link_options(startrail_operators PRIVATE LINKER:--exclude-libs,ALL -s)
_startrail_compile(startrail_operators QUICK LINKS startrail_torch)
set_target_properties(startrail_operators PROPERTIES LIBRARY_OUTPUT_DIRECTORY ${_folder} BUILD_WITH_INSTALL_RPATH ON
                                                     INSTALL_RPATH "$ORIGIN/../torch/lib")

set(_copies "")
foreach(file IN LISTS _package)
  set(copy ${PROJECT_BINARY_DIR}/python/${file})
  add_custom_command(
    OUTPUT ${copy} COMMAND ${CMAKE_COMMAND} -E copy ${PROJECT_SOURCE_DIR}/python/${file} ${copy}
    DEPENDS ${PROJECT_SOURCE_DIR}/python/${file} COMMENT "Copying ${file}")
  list(APPEND _copies ${copy})
endforeach()
add_custom_target(startrail_python ALL DEPENDS ${_copies} startrail_operators startrail_command
                  COMMAND ${CMAKE_COMMAND} -E create_symlink ${PROJECT_BINARY_DIR}/startrail ${_folder}/startrail)

install(TARGETS startrail_operators LIBRARY DESTINATION startrail COMPONENT python EXCLUDE_FROM_ALL)
install(TARGETS startrail_command RUNTIME DESTINATION startrail COMPONENT python EXCLUDE_FROM_ALL)
if(SKBUILD)
  set_target_properties(startrail_command PROPERTIES INSTALL_RPATH "$ORIGIN/../torch/lib;$ORIGIN/../torch.libs")
endif()

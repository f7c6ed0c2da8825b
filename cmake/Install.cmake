# `cmake --install`: headers, libraries, the program, and the package that makes find_package(StarTrail) work.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

get_property(libraries GLOBAL PROPERTY STARTRAIL_LIBRARIES)
add_library(startrail INTERFACE)  # StarTrail::startrail, all folders in one link
add_library(StarTrail::startrail ALIAS startrail)
target_link_libraries(startrail INTERFACE ${libraries})

set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/StarTrail)
install(TARGETS startrail ${libraries} EXPORT StarTrailTargets)
install(EXPORT StarTrailTargets NAMESPACE StarTrail:: DESTINATION ${package_dir})
install(DIRECTORY startrail DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} FILES_MATCHING PATTERN "*.h")
if(TARGET startrail_command)
  install(TARGETS startrail_command)
endif()

configure_package_config_file(
  cmake/StarTrailConfig.cmake.in StarTrailConfig.cmake INSTALL_DESTINATION ${package_dir}
  NO_SET_AND_CHECK_MACRO NO_CHECK_REQUIRED_COMPONENTS_MACRO)
write_basic_package_version_file(StarTrailConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(
  FILES ${PROJECT_BINARY_DIR}/StarTrailConfig.cmake ${PROJECT_BINARY_DIR}/StarTrailConfigVersion.cmake
        cmake/Torch.cmake
  DESTINATION ${package_dir})

# The package is tested as a stranger uses it: installed, found and linked by a project of its own.
file(GLOB example CONFIGURE_DEPENDS examples/attention/main.cc)
if(STARTRAIL_TESTS AND STARTRAIL_TORCH AND example)
  add_test(NAME install_example COMMAND scripts/test-install ${PROJECT_BINARY_DIR}
           WORKING_DIRECTORY ${PROJECT_SOURCE_DIR})
  set_tests_properties(install_example PROPERTIES RUN_SERIAL TRUE)
endif()

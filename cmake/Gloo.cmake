# ProcessGroupGloo.hpp includes Gloo's headers, which the wheel does not ship: these forward to the few lines it needs.
# Only startrail/run/hosts/gloo.cc sees them, so no other file can use Gloo by accident.
set(_gloo ${PROJECT_BINARY_DIR}/gloo_shim)
foreach(header algorithm context common/error rendezvous/store transport/device)
  file(CONFIGURE OUTPUT ${_gloo}/gloo/${header}.h CONTENT "#include \"startrail/run/hosts/gloo_shim.h\"\n")
endforeach()
set_source_files_properties(
  ${PROJECT_SOURCE_DIR}/startrail/run/hosts/gloo.cc PROPERTIES INCLUDE_DIRECTORIES ${_gloo} COMPILE_DEFINITIONS
                                                                                            USE_C10D_GLOO)

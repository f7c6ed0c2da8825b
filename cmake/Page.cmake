# cli/page/'s page, style and scripts as C++ texts, so that `startrail show` reads no file. The scripts are joined in the
# order of their names. Sets STARTRAIL_PAGE_SOURCE.
set(_folder ${PROJECT_SOURCE_DIR}/cli/page)
file(GLOB _scripts CONFIGURE_DEPENDS ${_folder}/*.js)
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${_folder}/page.html ${_folder}/style.css ${_scripts})

file(READ ${_folder}/page.html STARTRAIL_PAGE_HTML)
file(READ ${_folder}/style.css STARTRAIL_PAGE_STYLE)
set(STARTRAIL_PAGE_SCRIPT "")
foreach(_script ${_scripts})
  file(READ ${_script} _text)
  string(APPEND STARTRAIL_PAGE_SCRIPT "${_text}")
endforeach()
# A policy in the page allows these texts and no others.
string(SHA256 STARTRAIL_PAGE_STYLE_SUM "${STARTRAIL_PAGE_STYLE}")
string(SHA256 STARTRAIL_PAGE_SCRIPT_SUM "${STARTRAIL_PAGE_SCRIPT}")

set(STARTRAIL_PAGE_SOURCE ${PROJECT_BINARY_DIR}/page_source.cc)
configure_file(${PROJECT_SOURCE_DIR}/cmake/page_source.cc.in ${STARTRAIL_PAGE_SOURCE} @ONLY)

# SPDX-License-Identifier: Apache-2.0
# The agent as a C++ library (`find_package(elastrun)` gives elastrun::launcher, elastrun::command
# and elastrun::worker), installed beside the programs, and no part of a wheel or package.
include(CMakePackageConfigHelpers)

add_library(elastrun_worker INTERFACE)
set_target_properties(elastrun_worker PROPERTIES EXPORT_NAME worker)
target_compile_features(elastrun_worker INTERFACE cxx_std_17)
target_include_directories(elastrun_worker INTERFACE
  $<BUILD_INTERFACE:${CMAKE_SOURCE_DIR}/lib> $<INSTALL_INTERFACE:include/elastrun>)

get_property(modules GLOBAL PROPERTY elastrun_modules)
set(targets elastrun_flags elastrun_worker elastrun_command)
set_target_properties(elastrun_command PROPERTIES EXPORT_NAME command)
foreach(module IN LISTS modules)
  list(APPEND targets elastrun_${module})
  set_target_properties(elastrun_${module} PROPERTIES EXPORT_NAME ${module})
endforeach()
# What `cmake --install` needs built, without the tests: --target elastrun_installed.
add_custom_target(elastrun_installed DEPENDS elastrun elastrunctl elastrun_command)
foreach(module IN LISTS modules)
  add_dependencies(elastrun_installed elastrun_${module})
endforeach()
install(TARGETS ${targets} EXPORT elastrun
        ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR}/elastrun COMPONENT development)
install(DIRECTORY ${CMAKE_SOURCE_DIR}/lib/ DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/elastrun
        COMPONENT development FILES_MATCHING PATTERN "*.hpp" PATTERN "python" EXCLUDE
        REGEX "/lib/worker$" EXCLUDE)
install(DIRECTORY ${CMAKE_SOURCE_DIR}/config/examples/custom_launcher COMPONENT development
        DESTINATION ${CMAKE_INSTALL_DATADIR}/elastrun/config/examples)
install(FILES ${CMAKE_SOURCE_DIR}/apps/elastrun/launch.hpp COMPONENT development
        DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/elastrun/elastrun)

set(package ${CMAKE_INSTALL_LIBDIR}/cmake/elastrun)
install(EXPORT elastrun NAMESPACE elastrun:: DESTINATION ${package} FILE elastrunTargets.cmake
        COMPONENT development)
configure_package_config_file(${CMAKE_CURRENT_LIST_DIR}/elastrunConfig.cmake.in
  ${CMAKE_BINARY_DIR}/elastrunConfig.cmake INSTALL_DESTINATION ${package})
write_basic_package_version_file(${CMAKE_BINARY_DIR}/elastrunConfigVersion.cmake
  COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_BINARY_DIR}/elastrunConfig.cmake
  ${CMAKE_BINARY_DIR}/elastrunConfigVersion.cmake DESTINATION ${package} COMPONENT development)

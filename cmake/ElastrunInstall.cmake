# SPDX-License-Identifier: Apache-2.0
# Where `cmake --install` puts things: programs, manual, completions, the worker libraries, and the
# agent as a C++ library (`find_package(elastrun)` gives elastrun::agent, elastrun::launcher and
# elastrun::worker).
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

foreach(program elastrun elastrunctl)
  if(TARGET ${program})
    install(TARGETS ${program} RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
  endif()
endforeach()

install(FILES ${CMAKE_SOURCE_DIR}/LICENSE ${CMAKE_SOURCE_DIR}/README.md
        DESTINATION ${CMAKE_INSTALL_DOCDIR})

foreach(section 1 5 7)
  file(GLOB pages CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/man/*.${section})
  install(FILES ${pages} DESTINATION ${CMAKE_INSTALL_MANDIR}/man${section})
endforeach()

# Each program prints its own completions, from what its parser uses.
set(completions ${CMAKE_BINARY_DIR}/completions)
foreach(program elastrun elastrunctl)
  if(NOT TARGET ${program})
    continue()
  endif()
  foreach(pair bash=${program} zsh=_${program} fish=${program}.fish)
    string(REPLACE "=" ";" pair ${pair})
    list(GET pair 0 shell)
    list(GET pair 1 file)
    install(CODE "
      file(MAKE_DIRECTORY ${completions}/${shell})
      execute_process(COMMAND $<TARGET_FILE:${program}> --print-completion ${shell}
        OUTPUT_FILE ${completions}/${shell}/${file} COMMAND_ERROR_IS_FATAL ANY)")
  endforeach()
  install(FILES ${completions}/bash/${program}
          DESTINATION ${CMAKE_INSTALL_DATADIR}/bash-completion/completions)
  install(FILES ${completions}/zsh/_${program}
          DESTINATION ${CMAKE_INSTALL_DATADIR}/zsh/site-functions)
  install(FILES ${completions}/fish/${program}.fish
          DESTINATION ${CMAKE_INSTALL_DATADIR}/fish/vendor_completions.d)
endforeach()

# Workers: PYTHONPATH=PREFIX/share/elastrun/python, or one C++ header.
install(DIRECTORY ${CMAKE_SOURCE_DIR}/lib/python/
        DESTINATION ${CMAKE_INSTALL_DATADIR}/elastrun/python
        FILES_MATCHING PATTERN "*.py" PATTERN "py.typed")
add_library(elastrun_worker INTERFACE)
set_target_properties(elastrun_worker PROPERTIES EXPORT_NAME worker)
target_compile_features(elastrun_worker INTERFACE cxx_std_17)
target_include_directories(elastrun_worker INTERFACE
  $<BUILD_INTERFACE:${CMAKE_SOURCE_DIR}/lib> $<INSTALL_INTERFACE:include/elastrun>)

install(DIRECTORY ${CMAKE_SOURCE_DIR}/config/ DESTINATION ${CMAKE_INSTALL_DATADIR}/elastrun/config
        USE_SOURCE_PERMISSIONS PATTERN "__pycache__" EXCLUDE PATTERN "*.service" EXCLUDE)

# systemd looks below lib of /usr and /usr/local, whatever the libraries' folder is called there.
# The unit starts the program that is installed with it.
set(unit elastrun-store.service)
install(CODE "
  file(READ \"${CMAKE_SOURCE_DIR}/config/${unit}\" text)
  string(REPLACE ExecStart=/usr/bin/
    \"ExecStart=\${CMAKE_INSTALL_PREFIX}/${CMAKE_INSTALL_BINDIR}/\" text \"\${text}\")
  file(WRITE \"${CMAKE_BINARY_DIR}/${unit}\" \"\${text}\")")
install(FILES ${CMAKE_BINARY_DIR}/${unit} DESTINATION lib/systemd/system)

get_property(modules GLOBAL PROPERTY elastrun_modules)
set(targets elastrun_flags elastrun_worker elastrun_launcher)
set_target_properties(elastrun_launcher PROPERTIES EXPORT_NAME launcher)
foreach(module IN LISTS modules)
  list(APPEND targets elastrun_${module})
  set_target_properties(elastrun_${module} PROPERTIES EXPORT_NAME ${module})
endforeach()
# What `cmake --install` needs built, without the tests: --target elastrun_installed.
add_custom_target(elastrun_installed DEPENDS elastrun elastrunctl elastrun_launcher)
foreach(module IN LISTS modules)
  add_dependencies(elastrun_installed elastrun_${module})
endforeach()
install(TARGETS ${targets} EXPORT elastrun
        ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR}/elastrun)
install(DIRECTORY ${CMAKE_SOURCE_DIR}/lib/ DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/elastrun
        FILES_MATCHING PATTERN "*.hpp" PATTERN "python" EXCLUDE)
install(FILES ${CMAKE_SOURCE_DIR}/apps/elastrun/launch.hpp
        DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/elastrun/elastrun)

set(package ${CMAKE_INSTALL_LIBDIR}/cmake/elastrun)
install(EXPORT elastrun NAMESPACE elastrun:: DESTINATION ${package} FILE elastrunTargets.cmake)
configure_package_config_file(${CMAKE_CURRENT_LIST_DIR}/elastrunConfig.cmake.in
  ${CMAKE_BINARY_DIR}/elastrunConfig.cmake INSTALL_DESTINATION ${package})
write_basic_package_version_file(${CMAKE_BINARY_DIR}/elastrunConfigVersion.cmake
  COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_BINARY_DIR}/elastrunConfig.cmake
  ${CMAKE_BINARY_DIR}/elastrunConfigVersion.cmake DESTINATION ${package})

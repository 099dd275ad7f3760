# SPDX-License-Identifier: Apache-2.0
# Where `cmake --install` puts what people run: programs, manual, completions, the worker library.
# Of the components a wheel (pyproject.toml) has `program` and `plain`; a package (ElastrunPackage)
# has `program`, and what is `plain` in the form that Debian wants.
include(GNUInstallDirs)
if(SKBUILD)  # a wheel: pip puts these folders into the environment
  set(CMAKE_INSTALL_BINDIR ${SKBUILD_SCRIPTS_DIR})
  set(CMAKE_INSTALL_DATADIR ${SKBUILD_DATA_DIR}/share)
  set(CMAKE_INSTALL_MANDIR ${SKBUILD_DATA_DIR}/share/man)
  set(CMAKE_INSTALL_DOCDIR ${SKBUILD_DATA_DIR}/share/doc/elastrun)
  set(CMAKE_INSTALL_INCLUDEDIR ${SKBUILD_DATA_DIR}/include)
endif()

install(TARGETS elastrun RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR} COMPONENT program)
if(ELASTRUN_ONE_PROGRAM)
  install(PROGRAMS ${CMAKE_SOURCE_DIR}/apps/elastrunctl/elastrunctl.sh RENAME elastrunctl
          DESTINATION ${CMAKE_INSTALL_BINDIR} COMPONENT program)
else()
  install(TARGETS elastrunctl RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR} COMPONENT program)
endif()

# At the end of the program, after strip(1): an archive with program.py, so that Python runs the
# file as well (`python $(which torchrun)`). The program itself knows nothing of it.
set(entry ${CMAKE_BINARY_DIR}/python_entry)
set(folder ${CMAKE_INSTALL_BINDIR})
if(NOT IS_ABSOLUTE "${folder}")
  set(folder "\${CMAKE_INSTALL_PREFIX}/${folder}")
endif()
find_package(Python3 QUIET COMPONENTS Interpreter)
set(archive "\${CMAKE_COMMAND}" -E tar cf archive.zip --format=zip __main__.py)
if(Python3_FOUND)  # without its time and owner
  set(archive ${Python3_EXECUTABLE} -B ${CMAKE_CURRENT_LIST_DIR}/entry_archive.py __main__.py
      archive.zip)
endif()
list(JOIN archive "\" \"" archive)
install(CODE "
  set(ours \"\$ENV{DESTDIR}${folder}/elastrun\")
  file(COPY \"${CMAKE_SOURCE_DIR}/lib/python/elastrun/program.py\" DESTINATION \"${entry}\"
       NO_SOURCE_PERMISSIONS)
  file(RENAME \"${entry}/program.py\" \"${entry}/__main__.py\")
  execute_process(COMMAND \"${archive}\"
    WORKING_DIRECTORY \"${entry}\" COMMAND_ERROR_IS_FATAL ANY)
  execute_process(COMMAND cat \"\${ours}\" \"${entry}/archive.zip\"
    OUTPUT_FILE \"\${ours}.new\" COMMAND_ERROR_IS_FATAL ANY)
  file(CHMOD \"\${ours}.new\" PERMISSIONS OWNER_READ OWNER_WRITE OWNER_EXECUTE GROUP_READ
       GROUP_EXECUTE WORLD_READ WORLD_EXECUTE)
  file(RENAME \"\${ours}.new\" \"\${ours}\")" COMPONENT program)

# Each program prints its own completions, from what its parser uses.
set(completions ${CMAKE_BINARY_DIR}/completions)
foreach(program elastrun elastrunctl)
  foreach(pair bash=${program} zsh=_${program} fish=${program}.fish)
    string(REPLACE "=" ";" pair ${pair})
    list(GET pair 0 shell)
    list(GET pair 1 file)
    install(CODE "
      file(MAKE_DIRECTORY ${completions}/${shell})
      execute_process(COMMAND $<TARGET_FILE:${program}> --print-completion ${shell}
        OUTPUT_FILE ${completions}/${shell}/${file} COMMAND_ERROR_IS_FATAL ANY)"
      COMPONENT program)
  endforeach()
  install(FILES ${completions}/bash/${program} COMPONENT program
          DESTINATION ${CMAKE_INSTALL_DATADIR}/bash-completion/completions)
  install(FILES ${completions}/zsh/_${program} COMPONENT plain
          DESTINATION ${CMAKE_INSTALL_DATADIR}/zsh/site-functions)
  install(FILES ${completions}/fish/${program}.fish COMPONENT program
          DESTINATION ${CMAKE_INSTALL_DATADIR}/fish/vendor_completions.d)
endforeach()

install(DIRECTORY ${CMAKE_SOURCE_DIR}/config/ DESTINATION ${CMAKE_INSTALL_DATADIR}/elastrun/config
        COMPONENT program USE_SOURCE_PERMISSIONS
        PATTERN "__pycache__" EXCLUDE PATTERN "*.service" EXCLUDE
        REGEX "/config/observability$" EXCLUDE PATTERN "custom_launcher" EXCLUDE)
# For Prometheus and Grafana, whose configurations name the folder.
install(DIRECTORY ${CMAKE_SOURCE_DIR}/config/observability/ COMPONENT program
        DESTINATION ${CMAKE_INSTALL_DATADIR}/elastrun/observability)

# Workers in C++ need nothing else; libraries: ElastrunDevelopment.
install(DIRECTORY ${CMAKE_SOURCE_DIR}/lib/worker/ COMPONENT program
        DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/elastrun/worker FILES_MATCHING PATTERN "*.hpp")

foreach(section 1 5 7)
  file(GLOB pages CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/man/*.${section})
  install(FILES ${pages} DESTINATION ${CMAKE_INSTALL_MANDIR}/man${section} COMPONENT plain)
endforeach()
install(FILES ${CMAKE_SOURCE_DIR}/LICENSE ${CMAKE_SOURCE_DIR}/README.md
        DESTINATION ${CMAKE_INSTALL_DOCDIR} COMPONENT plain)

# For --worker-lib, and PYTHONPATH=PREFIX/share/elastrun/python: a folder without other packages can
# be given to any Python, which site-packages cannot.
install(DIRECTORY ${CMAKE_SOURCE_DIR}/lib/python/ COMPONENT python
        DESTINATION ${CMAKE_INSTALL_DATADIR}/elastrun/python
        FILES_MATCHING PATTERN "*.py" PATTERN "py.typed" PATTERN "__pycache__" EXCLUDE)

# systemd looks below lib of /usr and /usr/local, whatever the libraries' folder is called there.
# The unit starts the program that is installed with it.
set(unit elastrun-store.service)
install(CODE "
  file(READ \"${CMAKE_SOURCE_DIR}/config/${unit}\" text)
  string(REPLACE ExecStart=/usr/bin/
    \"ExecStart=\${CMAKE_INSTALL_PREFIX}/${CMAKE_INSTALL_BINDIR}/\" text \"\${text}\")
  file(WRITE \"${CMAKE_BINARY_DIR}/${unit}\" \"\${text}\")" COMPONENT unit)
install(FILES ${CMAKE_BINARY_DIR}/${unit} DESTINATION lib/systemd/system COMPONENT unit)

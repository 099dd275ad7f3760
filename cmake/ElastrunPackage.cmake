# SPDX-License-Identifier: Apache-2.0
# `cpack --preset release`: a Debian package of what people run, without the C++ libraries. Debian
# asks for compressed pages, a copyright file, a changelog, and has other folders; nothing of
# that is for `cmake --install` (EXCLUDE_FROM_ALL).
set(debian ${CMAKE_CURRENT_LIST_DIR}/debian)
set(compressed ${CMAKE_BINARY_DIR}/debian)
file(GLOB pages CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/man/*.[157])
install(CODE "
  file(MAKE_DIRECTORY \"${compressed}\")
  foreach(page IN ITEMS ${pages} \"${compressed}/changelog.Debian\")
    get_filename_component(name \"\${page}\" NAME)
    execute_process(COMMAND gzip -9nc \"\${page}\" OUTPUT_FILE \"${compressed}/\${name}.gz\"
      COMMAND_ERROR_IS_FATAL ANY)
  endforeach()" COMPONENT debian EXCLUDE_FROM_ALL)
foreach(page IN LISTS pages)
  get_filename_component(name ${page} NAME)
  string(REGEX MATCH "[157]$" section ${name})
  install(FILES ${compressed}/${name}.gz DESTINATION share/man/man${section}
          COMPONENT debian EXCLUDE_FROM_ALL)
endforeach()
foreach(program elastrun elastrunctl)
  install(FILES ${CMAKE_BINARY_DIR}/completions/zsh/_${program} COMPONENT debian EXCLUDE_FROM_ALL
          DESTINATION share/zsh/vendor-completions)
endforeach()
set(packager "The elastrun authors <elastrun@localhost>")
if(DEFINED ENV{DEBFULLNAME} AND DEFINED ENV{DEBEMAIL})  # as Debian's own tools take them
  set(packager "$ENV{DEBFULLNAME} <$ENV{DEBEMAIL}>")
endif()
configure_file(${debian}/changelog.in ${compressed}/changelog.Debian @ONLY)
install(FILES ${compressed}/changelog.Debian.gz ${debian}/copyright ${CMAKE_SOURCE_DIR}/README.md
        DESTINATION share/doc/elastrun COMPONENT debian EXCLUDE_FROM_ALL)
install(FILES ${CMAKE_SOURCE_DIR}/config/elastrun-store.service DESTINATION lib/systemd/system
        COMPONENT debian EXCLUDE_FROM_ALL)
install(DIRECTORY ${CMAKE_SOURCE_DIR}/lib/python/elastrun DESTINATION lib/python3/dist-packages
        COMPONENT debian EXCLUDE_FROM_ALL FILES_MATCHING PATTERN "*.py" PATTERN "py.typed"
        PATTERN "__pycache__" EXCLUDE)

set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_INSTALL_CMAKE_PROJECTS "${CMAKE_BINARY_DIR};elastrun;program;/"
    "${CMAKE_BINARY_DIR};elastrun;python;/" "${CMAKE_BINARY_DIR};elastrun;debian;/")
set(CPACK_STRIP_FILES ON)
set(CPACK_INSTALL_DEFAULT_DIRECTORY_PERMISSIONS OWNER_READ OWNER_WRITE OWNER_EXECUTE GROUP_READ
    GROUP_EXECUTE WORLD_READ WORLD_EXECUTE)
set(CPACK_PACKAGE_CONTACT "${packager}")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "elastic launcher for distributed training")
set(CPACK_DEBIAN_PACKAGE_DESCRIPTION
"Starts, watches and restarts the workers of a distributed training job, on one
node or many. Typed instead of torchrun, whose options and variables it takes;
it starts in milliseconds, leaves no process behind, names the worker that
failed first, and says at the end where the time went.")
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_RELEASE 1)
set(CPACK_DEBIAN_PACKAGE_SECTION science)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
# Workers are mostly Python's; the programs need none.
set(CPACK_DEBIAN_PACKAGE_RECOMMENDS python3)
set(CPACK_DEBIAN_PACKAGE_CONTROL_EXTRA ${debian}/postinst ${debian}/prerm)
set(CPACK_DEBIAN_PACKAGE_CONTROL_STRICT_PERMISSION ON)
include(CPack)

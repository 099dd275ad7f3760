# SPDX-License-Identifier: Apache-2.0
# Programs that run where an older glibc is than here: linked against libraries that have the names
# of that version alone (glibc/stubs.py), with the few newer ones in the program (newer_names.c).
# A wheel is linked so (pyproject.toml). Other builds are for the machine that they are made on: two
# libraries that are part of libc today are loaded by name, which takes 0.1 ms of each start.
set(ELASTRUN_GLIBC "" CACHE STRING "Oldest glibc on which the programs run, as 2.28; none: ours")

function(elastrun_make_stubs folder)
  find_package(Python3 QUIET COMPONENTS Interpreter)
  if(ELASTRUN_SANITIZE OR NOT Python3_FOUND OR NOT CMAKE_READELF)
    set(why "it takes Python, readelf, and a build without sanitisers")
  else()
    set(stubs ${CMAKE_CURRENT_FUNCTION_LIST_DIR}/glibc/stubs.py)
    execute_process(COMMAND ${CMAKE_COMMAND} -E env READELF=${CMAKE_READELF}
        ${Python3_EXECUTABLE} -B ${stubs} ${CMAKE_C_COMPILER} ${ELASTRUN_GLIBC} ${folder}
      RESULT_VARIABLE code ERROR_VARIABLE why)
    if(code EQUAL 0)
      return()
    endif()
  endif()
  string(STRIP "${why}" why)
  message(STATUS "The programs will need the glibc of this machine: ${why}")
  set(ELASTRUN_GLIBC "" PARENT_SCOPE)
endfunction()

# elastrun_runs_on_older_glibc(TARGET...): programs.
function(elastrun_runs_on_older_glibc)
  if(NOT ELASTRUN_GLIBC)
    return()
  endif()
  set(folder ${CMAKE_BINARY_DIR}/glibc)
  elastrun_make_stubs(${folder})
  if(NOT ELASTRUN_GLIBC)
    return()
  endif()
  add_library(elastrun_newer_names OBJECT ${CMAKE_CURRENT_FUNCTION_LIST_DIR}/glibc/newer_names.c)
  foreach(target IN LISTS ARGN)
    target_link_libraries(${target} PRIVATE elastrun_newer_names)
    target_link_options(${target} PRIVATE -L${folder} -Wl,--wrap=__libc_start_main
      -Wl,--push-state,--no-as-needed ${folder}/libpthread.so.0 ${folder}/libdl.so.2
      -Wl,--pop-state)
  endforeach()
endfunction()

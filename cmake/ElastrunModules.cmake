# SPDX-License-Identifier: Apache-2.0
# One static library per folder of lib, with its rooms if it has any, and one test program per
# module, named after the folder.

# elastrun_module(NAME [USES module...] [LINKS target...])
function(elastrun_module name)
  cmake_parse_arguments(arg "" "" "USES;LINKS" ${ARGN})
  file(GLOB sources CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/lib/${name}/*.cpp
       ${CMAKE_SOURCE_DIR}/lib/${name}/*/*.cpp ${CMAKE_SOURCE_DIR}/lib/${name}/*.c)
  if(NOT sources)
    add_library(elastrun_${name} INTERFACE)
    set(scope INTERFACE)
  else()
    add_library(elastrun_${name} STATIC ${sources})
    set(scope PUBLIC)
    if(name STREQUAL "core")
      # By its name in the include path: with an absolute one, the header's bytes and so those of
      # all that use it would differ from checkout to checkout, and ccache never find any of them.
      target_precompile_headers(elastrun_core PRIVATE
        "$<$<COMPILE_LANGUAGE:CXX>:\"core/precompiled.hpp\">")
    else()
      target_precompile_headers(elastrun_${name} REUSE_FROM elastrun_core)
    endif()
  endif()
  list(TRANSFORM arg_USES PREPEND elastrun_)
  target_link_libraries(elastrun_${name} ${scope} elastrun_flags ${arg_USES} ${arg_LINKS})
  set_property(GLOBAL APPEND PROPERTY elastrun_modules ${name})
endfunction()

# elastrun_unit_tests(MODULE [KIND...]): tests/unit/MODULE/*_test.cpp -> program unit_MODULE, a
# CTest each. Cases called "KIND: ..." get a CTest of their own, to run beside the others.
function(elastrun_unit_tests module)
  file(GLOB sources CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/tests/unit/${module}/*_test.cpp)
  if(NOT sources)
    return()
  endif()
  add_executable(unit_${module} ${sources})
  target_precompile_headers(unit_${module} REUSE_FROM ${ELASTRUN_TESTS_SHARE})
  target_compile_options(unit_${module} PRIVATE $<$<CONFIG:Release>:-O1>)
  target_include_directories(unit_${module} PRIVATE ${CMAKE_SOURCE_DIR}/tests)
  if(module MATCHES "^(spec|telemetry)$")  # these name the same things from several namespaces
    set_target_properties(unit_${module} PROPERTIES UNITY_BUILD OFF)
  endif()
  target_link_libraries(unit_${module} PRIVATE elastrun_${module} elastrun_test_support)
  set(tests unit_${module})
  set(others "")
  foreach(kind IN LISTS ARGN)
    string(REPLACE " " "_" name "unit_${module}_${kind}")
    add_test(NAME ${name} COMMAND unit_${module} "--test-case=${kind}: *")
    list(APPEND tests ${name})
    list(APPEND others "${kind}: *")
  endforeach()
  if(others)
    string(JOIN "," others ${others})
    set(others "--test-case-exclude=${others}")
  endif()
  add_test(NAME unit_${module} COMMAND unit_${module} ${others})
  set_tests_properties(${tests} PROPERTIES TIMEOUT 300 LABELS unit)
endfunction()

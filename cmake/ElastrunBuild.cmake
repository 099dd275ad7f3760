# SPDX-License-Identifier: Apache-2.0
# How every target is compiled. Included once from the top.
set(CMAKE_CXX_STANDARD 23)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
set(CMAKE_POSITION_INDEPENDENT_CODE OFF)
if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "" FORCE)
endif()

# Whole builds compile sixteen files of a module as one: headers that neighbours share take most of
# the time. The quick build (preset dev) keeps them apart and compiles what changed.
if(NOT CMAKE_BUILD_TYPE STREQUAL Debug OR ELASTRUN_SANITIZE)
  set(together ON)
endif()
option(ELASTRUN_TOGETHER "Compile files of a module together" ${together})
set(CMAKE_UNITY_BUILD ${ELASTRUN_TOGETHER})
set(CMAKE_UNITY_BUILD_BATCH_SIZE 16)
if(CMAKE_BUILD_TYPE STREQUAL Debug AND NOT ELASTRUN_SANITIZE)
  set(CMAKE_UNITY_BUILD_BATCH_SIZE 0)  # all: without optimisation headers take nearly all of it
endif()

find_program(ELASTRUN_CCACHE ccache)
if(ELASTRUN_CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  # The sloppiness that a precompiled header needs to be cached at all (ccache(1)).
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CMAKE_COMMAND} -E env
      CCACHE_SLOPPINESS=pch_defines,time_macros,include_file_mtime,include_file_ctime
      CCACHE_BASEDIR=${CMAKE_SOURCE_DIR} CCACHE_NOHASHDIR=1 ${ELASTRUN_CCACHE})
endif()

# What is missing is told at once and as a whole: minutes later is late to hear of one header.
# elastrun_needs(NAME PACKAGE FOUND): a library, its Debian package, and the variable that says
# whether it was found.
set(ELASTRUN_MISSING "")
set(ELASTRUN_PACKAGES "")
macro(elastrun_needs name package found)
  if(NOT ${found})
    list(APPEND ELASTRUN_MISSING "${name}")
    list(APPEND ELASTRUN_PACKAGES "${package}")
  endif()
endmacro()

foreach(need CLI11=CLI/CLI.hpp=libcli11-dev toml++=toml++/toml.h=libtomlplusplus-dev
        fmt=fmt/format.h=libfmt-dev spdlog=spdlog/logger.h=libspdlog-dev)  # headers alone
  string(REPLACE "=" ";" need ${need})
  list(GET need 0 name)
  list(GET need 1 header)
  list(GET need 2 package)
  find_path(ELASTRUN_${name}_INCLUDE ${header})
  mark_as_advanced(ELASTRUN_${name}_INCLUDE)
  elastrun_needs(${name} ${package} "ELASTRUN_${name}_INCLUDE")
endforeach()
set(OPENSSL_USE_STATIC_LIBS ON)  # before it is looked for
if(POLICY CMP0167)  # by Boost's own CMake files, as CMake before 3.30 prefers, too
  cmake_policy(SET CMP0167 NEW)
endif()
find_package(Boost 1.81 QUIET)
elastrun_needs("Boost 1.81" libboost1.81-dev Boost_FOUND)
find_package(OpenSSL QUIET)
elastrun_needs(OpenSSL libssl-dev OPENSSL_FOUND)
find_library(ELASTRUN_HWLOC_ARCHIVE libhwloc.a)
elastrun_needs(hwloc libhwloc-dev ELASTRUN_HWLOC_ARCHIVE)
if(ELASTRUN_MISSING)
  string(JOIN ", " missing ${ELASTRUN_MISSING})
  string(JOIN " " packages ${ELASTRUN_PACKAGES})
  message(FATAL_ERROR "elastrun needs ${missing}, not found here (Debian: apt-get install "
    "${packages}; elsewhere: -DCMAKE_PREFIX_PATH=FOLDER)")
endif()
find_package(Threads REQUIRED)

# Every target links this; it carries flags and third-party include folders, no code. Warnings are
# for this build alone: users of the installed libraries choose their own.
add_library(elastrun_flags INTERFACE)
set(warnings -Wall -Wextra -Wpedantic -Wconversion -Wnon-virtual-dtor -Woverloaded-virtual
  $<IF:$<AND:$<BOOL:${ELASTRUN_TOGETHER}>,$<CXX_COMPILER_ID:GNU>>,-Wshadow=local,-Wshadow>
  $<$<BOOL:$ENV{CI}>:-Werror> -fno-plt
  # GCC 12 reports these inside its own coroutine frames and std::variant; clang checks the same.
  $<$<CXX_COMPILER_ID:GNU>:-Wno-maybe-uninitialized>
  $<$<CXX_COMPILER_ID:GNU>:-Wno-mismatched-new-delete>
  $<$<CXX_COMPILER_ID:GNU>:-fpch-preprocess>
  # std::stable_sort of libstdc++ 12 calls a function that is deprecated, and clang says so.
  $<$<CXX_COMPILER_ID:Clang>:-Wno-deprecated-declarations>
  # With -O2 it also sees ghosts in std::string's operator+ (GCC bug 105651).
  $<$<AND:$<CXX_COMPILER_ID:GNU>,$<CONFIG:Release>>:-Wno-array-bounds>
  $<$<AND:$<CXX_COMPILER_ID:GNU>,$<CONFIG:Release>>:-Wno-restrict>
  $<$<AND:$<CXX_COMPILER_ID:GNU>,$<CONFIG:Release>>:-Wno-stringop-overread>
  $<$<AND:$<CXX_COMPILER_ID:GNU>,$<CONFIG:Release>>:-Wno-stringop-overflow>)
target_compile_options(elastrun_flags INTERFACE "$<BUILD_INTERFACE:${warnings}>")
target_compile_features(elastrun_flags INTERFACE cxx_std_23)
target_compile_definitions(elastrun_flags INTERFACE
  BOOST_ASIO_SEPARATE_COMPILATION BOOST_ASIO_NO_DEPRECATED BOOST_ERROR_CODE_HEADER_ONLY
  # fmt 9 checks format strings with a consteval constructor that clang does not take as constant.
  $<$<CXX_COMPILER_ID:Clang>:FMT_USE_CONSTEVAL=0>)
target_include_directories(elastrun_flags INTERFACE
  $<BUILD_INTERFACE:${CMAKE_SOURCE_DIR}/lib> $<INSTALL_INTERFACE:include/elastrun>
  $<INSTALL_INTERFACE:include>)
target_link_libraries(elastrun_flags INTERFACE Boost::headers Threads::Threads)
# By the linker that takes a third of the time, and puts functions into an order that it is given
# (apps/CMakeLists.txt).
find_program(ELASTRUN_GOLD ld.gold)
if(ELASTRUN_GOLD AND NOT CMAKE_EXE_LINKER_FLAGS MATCHES "-fuse-ld")
  set(ELASTRUN_BY_GOLD ON)
  target_link_options(elastrun_flags INTERFACE
    $<BUILD_INTERFACE:$<$<CONFIG:Debug,Release>:-fuse-ld=gold>>)
endif()
if(ELASTRUN_SANITIZE)
  # Without vptr: to look at memory it opens a pipe, and calls every object invalid where no
  # descriptor is left, which is what some tests are about. Without null and alignment, a third of
  # the whole compilation: AddressSanitizer stops at a null pointer that is followed, and both are
  # on where the parsers of foreign bytes are fuzzed (tests/fuzz).
  target_compile_options(elastrun_flags INTERFACE
    -fsanitize=address,undefined -fno-sanitize=vptr,null,alignment -fno-sanitize-recover=undefined
    -fno-omit-frame-pointer -g1)
  target_link_options(elastrun_flags INTERFACE -fsanitize=address,undefined)
else()
  # One file that can be copied to every node: ldd shows libc alone.
  target_link_options(elastrun_flags INTERFACE -static-libstdc++ -static-libgcc)
  # At a fixed address: what another one costs is in elastrun-design(7), STARTING QUICKLY.
  target_link_options(elastrun_flags INTERFACE $<$<CONFIG:Release>:-no-pie>)
  # Code that is never called, much of it libstdc++'s, lies between that which runs and costs
  # memory.
  target_compile_options(elastrun_flags INTERFACE
    $<BUILD_INTERFACE:$<$<CONFIG:Release>:-ffunction-sections>>)
  set(one_mapping $<$<CONFIG:Release>:-Wl,-z,noseparate-code>)
  if(ELASTRUN_BY_GOLD)  # which makes one in any case, and does not know the option
    set(one_mapping $<INSTALL_INTERFACE:${one_mapping}>)
  endif()
  target_link_options(elastrun_flags INTERFACE
    $<$<CONFIG:Release>:-Wl,--gc-sections> ${one_mapping})
endif()

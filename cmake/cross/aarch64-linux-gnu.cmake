# SPDX-License-Identifier: Apache-2.0
# Compiles for ARM64 elsewhere (scripts/cross, which fills ELASTRUN_CROSS_ROOT with libraries of
# that machine and with links to headers that are the same on each).
set(triple aarch64-linux-gnu)
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_C_COMPILER ${triple}-gcc)
set(CMAKE_CXX_COMPILER ${triple}-g++)
set(CMAKE_LIBRARY_ARCHITECTURE ${triple})
set(CMAKE_CROSSCOMPILING_EMULATOR qemu-aarch64 -L /usr/${triple})
set(CMAKE_TRY_COMPILE_PLATFORM_VARIABLES ELASTRUN_CROSS_ROOT)
set(CMAKE_FIND_ROOT_PATH ${ELASTRUN_CROSS_ROOT} /usr/${triple})
set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
foreach(kind LIBRARY INCLUDE PACKAGE)
  set(CMAKE_FIND_ROOT_PATH_MODE_${kind} ONLY)
endforeach()
# Debian keeps the headers that differ from machine to machine in a folder of the machine's name.
set(CMAKE_CXX_FLAGS_INIT "-isystem ${ELASTRUN_CROSS_ROOT}/usr/include/${triple}")

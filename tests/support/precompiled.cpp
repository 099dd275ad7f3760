// SPDX-License-Identifier: Apache-2.0
// CMake makes a precompiled header only where a source uses it; main.cpp defines doctest's own code
// before it includes doctest, and cannot.
#include "support/precompiled.hpp"

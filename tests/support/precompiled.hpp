// SPDX-License-Identifier: Apache-2.0
#pragma once

// What every test includes, compiled once for all test programs.
#include "core/precompiled.hpp"

#include <doctest/doctest.h>

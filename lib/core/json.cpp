// SPDX-License-Identifier: Apache-2.0
// Boost.JSON's own sources, compiled once for the whole program.
#include <boost/json/src.hpp>

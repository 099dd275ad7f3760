// SPDX-License-Identifier: Apache-2.0
// Asio's own sources, compiled once for the whole program (BOOST_ASIO_SEPARATE_COMPILATION).
#include <boost/asio/impl/src.hpp>

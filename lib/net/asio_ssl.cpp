// SPDX-License-Identifier: Apache-2.0
// Asio's TLS, compiled once (the rest of Asio: core/asio.cpp).
#include <boost/asio/ssl/impl/src.hpp>

# SPDX-License-Identifier: Apache-2.0
elastrun_fuzz_target(http_request SOURCES
  lib/http/request_reader.cpp lib/core/asio.cpp lib/core/text.cpp
  lib/core/error.cpp lib/core/fmt.cpp)

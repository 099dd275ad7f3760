// SPDX-License-Identifier: Apache-2.0
#pragma once

// spdlog as it is used here: compiled once, in core/spdlog.cpp, because Debian ships the library
// only shared. For sources of ours; our headers declare what they need of it.
#define SPDLOG_COMPILED_LIB
#include <spdlog/details/log_msg_buffer.h>
#include <spdlog/details/null_mutex.h>
#include <spdlog/logger.h>
#include <spdlog/pattern_formatter.h>
#include <spdlog/sinks/base_sink.h>
#include <spdlog/sinks/rotating_file_sink.h>

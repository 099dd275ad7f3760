// SPDX-License-Identifier: Apache-2.0
#include "logs/own_stream.hpp"

#include "files/whole_file.hpp"

namespace elastrun::logs {

std::optional<Console::Stream> own_stream(const std::string& path, int out, int err) {
  using Stream = Console::Stream;
  // By name first: where /dev has no such link, a file of that name is not what is meant.
  if (path == "/dev/stdout" || files::is_open_at(path, out)) return Stream::Out;
  if (path == "/dev/stderr" || files::is_open_at(path, err)) return Stream::Err;
  return std::nullopt;
}

}  // namespace elastrun::logs

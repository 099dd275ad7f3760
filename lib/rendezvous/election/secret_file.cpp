// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/election/secret_file.hpp"

#include "core/log.hpp"
#include "core/text.hpp"

#include <fmt/format.h>
#include <fstream>
#include <iterator>
#include <sys/stat.h>

namespace elastrun::rendezvous {

Result<std::string> read_secret(const std::string& file, const std::string& given) {
  if (file.empty()) return given;
  std::ifstream stream(file, std::ios::binary);
  const std::string text{std::istreambuf_iterator<char>(stream), {}};
  if (stream.bad() || !stream.is_open()) {
    return std::unexpected(errno_error(
        Code::Usage, fmt::format("cannot read the secret of the job (secret_file={})", file),
        errno));
  }
  struct stat status {};
  if (::stat(file.c_str(), &status) == 0 && (status.st_mode & 077) != 0) {
    log::warning("rendezvous",
                 "the secret in {} can be read by others on this machine: chmod 600 {}", file,
                 file);
  }
  const std::string secret(trim(text));
  if (secret.empty()) {
    return fail(Code::Usage, fmt::format("the secret of the job (secret_file={}) is empty", file));
  }
  return secret;
}

}  // namespace elastrun::rendezvous

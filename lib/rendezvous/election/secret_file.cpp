// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/election/secret_file.hpp"

#include "core/log.hpp"
#include "core/read_file.hpp"
#include "core/text.hpp"

#include <fmt/format.h>
#include <sys/stat.h>

namespace elastrun::rendezvous {

Result<std::string> read_secret(const std::string& file, const std::string& given) {
  if (file.empty()) return given;
  const auto text = read_file(file);
  if (!text) {
    return fail(Code::Usage, "cannot read the secret of the job, secret_file=" + text.error().text);
  }
  struct stat status {};
  if (::stat(file.c_str(), &status) == 0 && (status.st_mode & 077) != 0) {
    log::warning("rendezvous",
                 "the secret in {} can be read by others on this machine: chmod 600 {}", file,
                 file);
  }
  const std::string secret(trim(*text));
  // Elsewhere an empty one means that the job has none.
  if (secret.empty()) {
    return fail(Code::Usage, fmt::format("the secret of the job (secret_file={}) is empty", file));
  }
  return secret;
}

}  // namespace elastrun::rendezvous

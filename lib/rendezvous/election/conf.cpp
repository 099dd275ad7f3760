// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/election/conf.hpp"

#include "core/log.hpp"
#include "core/text.hpp"

#include <algorithm>
#include <array>
#include <fmt/format.h>
#include <fstream>
#include <iterator>
#include <sys/stat.h>

namespace elastrun::rendezvous {

std::string Conf::text(std::string_view key, std::string otherwise) const {
  const auto found = values_.find(std::string(key));
  return found == values_.end() ? std::move(otherwise) : found->second;
}

std::int64_t Conf::number(std::string_view key, std::int64_t otherwise) const {
  return parse_int(text(key)).value_or(otherwise);
}

Duration Conf::seconds(std::string_view key, Duration otherwise) const {
  const auto value = parse_float(text(key));
  return value && *value > 0 ? from_seconds(*value) : otherwise;
}

std::optional<bool> Conf::flag(std::string_view key) const {
  const std::string word = to_lower(text(key));
  for (const char* yes : {"1", "true", "t", "yes", "y"}) {
    if (word == yes) return true;
  }
  for (const char* no : {"0", "false", "f", "no", "n"}) {
    if (word == no) return false;
  }
  return std::nullopt;
}

std::pair<std::uint16_t, std::uint16_t> Conf::ports(std::string_view key) const {
  const auto parts = split(text(key), '-');
  const auto first = parse_int(parts.front()), last = parse_int(parts.back());
  if (!first || !last || *first < 0 || *last > 65535 || *last < *first) return {0, 0};
  return {static_cast<std::uint16_t>(*first), static_cast<std::uint16_t>(*last)};
}

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

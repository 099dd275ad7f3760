// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/clock.hpp"
#include "core/error.hpp"

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

namespace elastrun::rendezvous {

/// Reads values of --rdzv-conf. Whoever fills it has checked them; texts that mean nothing all the
/// same count as not given.
class Conf {
 public:
  explicit Conf(std::map<std::string, std::string> values) : values_(std::move(values)) {}
  std::string text(std::string_view key, std::string otherwise = {}) const;
  std::int64_t number(std::string_view key, std::int64_t otherwise) const;
  Duration seconds(std::string_view key, Duration otherwise) const;
  std::optional<bool> flag(std::string_view key) const;
  /// "N" or "A-B"; 0-0 if not given.
  std::pair<std::uint16_t, std::uint16_t> ports(std::string_view key) const;

 private:
  std::map<std::string, std::string> values_;
};

/// The job's secret: the trimmed text of the file, or `given`. Fails with Usage if the file cannot
/// be read or is empty; warns in the log if others on this machine may read it.
Result<std::string> read_secret(const std::string& file, const std::string& given);

}  // namespace elastrun::rendezvous

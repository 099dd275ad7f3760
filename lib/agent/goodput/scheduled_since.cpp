// SPDX-License-Identifier: Apache-2.0
#include "agent/goodput/scheduled_since.hpp"

#include "core/log.hpp"
#include "core/text.hpp"
#include "workers/environment.hpp"

#include <ctime>
#include <fcntl.h>
#include <fmt/format.h>
#include <string_view>
#include <sys/stat.h>

namespace elastrun::agent {
namespace {

constexpr const char* kCreated = "ELASTRUN_JOB_CREATED";
constexpr std::int64_t kLatest = 9'000'000'000;  // seconds
constexpr std::string_view kAccount = "/var/run/secrets/kubernetes.io/serviceaccount";

std::optional<WallTime> at_second(std::int64_t seconds) {
  if (seconds <= 0 || seconds > kLatest) return std::nullopt;
  return WallTime(std::chrono::seconds(seconds));
}

/// RFC 3339 as Kubernetes writes it: UTC, whole seconds.
std::optional<WallTime> parse_utc(const std::string& text) {
  std::tm parts{};
  const char* rest = ::strptime(text.c_str(), "%Y-%m-%dT%H:%M:%SZ", &parts);
  // timegm(3), since mktime(3) would take these parts for local time.
  return rest != nullptr && *rest == '\0' ? at_second(::timegm(&parts)) : std::nullopt;
}

std::optional<WallTime> created(const std::string& text) {
  const auto seconds = parse_int(text);
  const auto time = seconds ? at_second(*seconds) : parse_utc(text);
  if (!time) {
    log::warning("goodput", "{}='{}': no time, ignored; expected seconds since the epoch, or {}",
                 kCreated, text, "2026-01-02T03:04:05Z");
  }
  return time;
}

/// An update of the token, once an hour or so, changes the folder; where its file system tells when
/// it was made, that holds.
std::optional<WallTime> volume_made(const std::string& root) {
  struct statx made {};
  const std::string path = root + std::string(kAccount);
  if (::statx(AT_FDCWD, path.c_str(), 0, STATX_BTIME | STATX_MTIME, &made) != 0)
    return std::nullopt;
  // Not every file system keeps the time of birth: the mask says what was filled in (statx(2)).
  const bool birth = (made.stx_mask & STATX_BTIME) != 0;
  return at_second(birth ? made.stx_btime.tv_sec : made.stx_mtime.tv_sec);
}

}  // namespace

std::optional<WallTime> scheduled_since(const std::vector<std::string>& environment,
                                        const std::string& root) {
  const auto variable = [&](std::string_view name) {
    return workers::find_variable(environment, name);
  };
  if (const auto text = variable(kCreated); text && !text->empty()) {
    if (const auto time = created(std::string(*text))) return time;
  }
  if (const auto text = variable("SLURM_JOB_START_TIME")) {
    const auto seconds = parse_int(*text);
    return seconds ? at_second(*seconds) : std::nullopt;
  }
  return variable("KUBERNETES_SERVICE_HOST") ? volume_made(root) : std::nullopt;
}

}  // namespace elastrun::agent

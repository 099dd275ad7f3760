// SPDX-License-Identifier: Apache-2.0
#include "spec/rdzv_conf.hpp"

#include "core/text.hpp"
#include "spec/option_values.hpp"

#include <algorithm>
#include <array>
#include <fmt/format.h>

namespace elastrun::spec {
namespace {

enum class Check { Any, PositiveSeconds, PositiveCount, Boolean, StoreType, Protocol, Ports };

struct Key {
  std::string_view name;
  Check check;
  std::string_view backends;  // those that read it
};

constexpr std::string_view kDynamic = "c10d etcd etcd-v2 file";
constexpr std::string_view kEtcd = "etcd etcd-v2";
constexpr std::string_view kElected = "etcd etcd-v2 file";
constexpr std::array<Key, 29> kKeys = {{
    {"join_timeout", Check::PositiveSeconds, kDynamic},
    {"last_call_timeout", Check::PositiveSeconds, kDynamic},
    {"close_timeout", Check::PositiveSeconds, kDynamic},
    {"heartbeat_timeout", Check::PositiveSeconds, kDynamic},
    {"keep_alive_interval", Check::PositiveCount, kDynamic},
    {"keep_alive_max_attempt", Check::PositiveCount, kDynamic},
    {"read_timeout", Check::PositiveCount, "c10d etcd etcd-v2 file static"},
    {"store_type", Check::StoreType, "c10d"},
    {"is_host", Check::Boolean, "c10d"},
    {"store_port", Check::Ports, "c10d etcd etcd-v2 file static"},
    {"secret_file", Check::Any, "c10d etcd etcd-v2 file static"},
    {"timeout", Check::PositiveCount, "static etcd"},
    {"rank", Check::Any, "static"},
    {"protocol", Check::Protocol, kEtcd},
    {"ssl_cert", Check::Any, kEtcd},
    {"ssl_cert_key", Check::Any, kEtcd},
    {"ca_cert", Check::Any, kEtcd},
    {"cert", Check::Any, kEtcd},
    {"key", Check::Any, kEtcd},
    {"cacert", Check::Any, kEtcd},
    {"etcd_prefix", Check::Any, kEtcd},
    {"user", Check::Any, kEtcd},
    {"username", Check::Any, kEtcd},
    {"password", Check::Any, kEtcd},
    {"password_file", Check::Any, kEtcd},
    {"lease_ttl", Check::PositiveCount, kElected},
    {"isolation_timeout", Check::PositiveSeconds, kElected},
    {"coordinator_port", Check::Ports, kElected},
    {"advertise", Check::Any, kElected},
}};

bool reads(const Key& key, std::string_view backend) {
  const auto names = split(key.backends, ' ');
  return std::find(names.begin(), names.end(), backend) != names.end();
}

// store_type=file makes the c10d backend the file one under another name.
bool meets_in_file(const RdzvConf& conf, std::string_view backend) {
  const auto type = conf.find("store_type");
  return backend == "c10d" && type != conf.end() && to_lower(trim(type->second)) == "file";
}

Refusal not_a(std::string_view key, std::string_view what) {
  return launcher_refusal(fmt::format(
      "The rendezvous configuration option '{}' does not represent a valid {} value.", key, what));
}

// Python's text of a timedelta, for the texts of torchrun.
std::string timedelta(std::int64_t seconds) {
  const std::int64_t day = 86400;
  const auto days = (seconds >= 0 ? seconds : seconds - day + 1) / day;
  const auto rest = seconds - days * day;
  const auto clock = fmt::format("{}:{:02}:{:02}", rest / 3600, rest / 60 % 60, rest % 60);
  if (days == 0) return clock;
  return fmt::format("{} day{}, {}", days, days == 1 || days == -1 ? "" : "s", clock);
}

bool is_boolean(std::string_view text) {
  constexpr std::array<std::string_view, 10> kWords = {"1", "true",  "t", "yes", "y",
                                                       "0", "false", "f", "no",  "n"};
  return std::find(kWords.begin(), kWords.end(), to_lower(text)) != kWords.end();
}

bool is_port_range(std::string_view text) {
  const auto ends = split(text, '-');
  if (ends.size() > 2) return false;
  const auto first = parse_int(ends.front()), last = parse_int(ends.back());
  return first && last && *first >= 0 && *first <= *last && *last <= 65535;
}

std::optional<Refusal> check_number(const Key& key, const std::string& value) {
  const auto number = parse_int(value);
  if (!number) return not_a(key.name, "integer");
  if (*number > 0) return std::nullopt;
  if (key.check == Check::PositiveSeconds) {
    std::string name(key.name.substr(0, key.name.rfind("_timeout")));
    return launcher_refusal(
        fmt::format("The {} timeout ({}) must be positive.", name, timedelta(*number)),
        fmt::format("see {} in --rdzv-conf", key.name));
  }
  if (key.name == "read_timeout") {
    return launcher_refusal("A read_timeout has to be a whole number above 0.");
  }
  return launcher_refusal(
      fmt::format("The rendezvous configuration option '{}' must be positive, got {}.", key.name,
                  *number),
      "with 0 every node would count as lost at once");
}

std::optional<Refusal> check_value(const Key& key, const std::string& value) {
  switch (key.check) {
    case Check::Any:
      return std::nullopt;
    case Check::PositiveSeconds:
    case Check::PositiveCount:
      return check_number(key, value);
    case Check::Boolean:
      return is_boolean(value) ? std::nullopt : std::optional(not_a(key.name, "boolean"));
    case Check::StoreType: {
      const auto type = to_lower(trim(value));
      if (type == "tcp" || type == "file") return std::nullopt;
      return launcher_refusal("Invalid store type given. Currently only supports file and tcp.");
    }
    case Check::Protocol:
      if (value == "http" || value == "https") return std::nullopt;
      return launcher_refusal("The protocol must be HTTP or HTTPS.",
                              fmt::format("protocol={} in --rdzv-conf is neither", value));
    case Check::Ports:
      if (is_port_range(value)) return std::nullopt;
      return launcher_refusal(
          fmt::format("The rendezvous configuration option '{}' must be a port or a range of ports "
                      "such as 29500-29600, got '{}'.",
                      key.name, value));
  }
  return std::nullopt;
}

std::string unread_warning(std::string_view key, std::string_view backend) {
  if (key == "timeout") {
    return fmt::format(
        "--rdzv-conf: the {} backend does not read 'timeout'; join_timeout is the key that limits "
        "how long the nodes wait for each other",
        backend);
  }
  std::vector<std::string> names;
  for (const auto& known : kKeys) {
    if (reads(known, backend)) names.emplace_back(known.name);
  }
  const auto near = nearest(key, names);
  return fmt::format("--rdzv-conf: the {} backend does not read '{}'; it has no effect{}", backend,
                     key, near ? fmt::format(" (did you mean {}?)", *near) : "");
}

}  // namespace

Answer<RdzvConf> parse_rdzv_conf(const std::vector<std::string>& parts) {
  RdzvConf conf;
  for (const auto& part : parts) {
    const auto equals = part.find('=');
    const std::string key(trim(std::string_view(part).substr(0, equals)));
    const std::string value(
        equals == std::string::npos ? "" : trim(std::string_view(part).substr(equals + 1)));
    if (key.empty()) {
      return std::unexpected(
          launcher_refusal("The rendezvous configuration string must be in format "
                           "<key1>=<value1>,...,<keyN>=<valueN>.",
                           "see --rdzv-conf"));
    }
    if (value.empty()) {
      return std::unexpected(launcher_refusal(fmt::format(
          "The rendezvous configuration option '{}' must have a value specified.", key)));
    }
    conf[key] = value;
  }
  return conf;
}

Answer<RdzvConf> parse_rdzv_conf(std::string_view text) {
  text = trim(text);
  return text.empty() ? RdzvConf{} : parse_rdzv_conf(split(text, ','));
}

std::optional<Refusal> check_rdzv_conf(const RdzvConf& conf, std::string_view backend,
                                       std::vector<std::string>& warnings) {
  for (const std::string_view taken :
       {"backend", "endpoint", "run_id", "min_nodes", "max_nodes", "local_addr"}) {
    if (conf.find(std::string(taken)) == conf.end()) continue;
    return launcher_refusal(
        fmt::format("--rdzv-conf got multiple values for keyword argument '{}'", taken),
        "it has an option of its own, --" + std::string(taken == "backend"      ? "rdzv-backend"
                                                        : taken == "endpoint"   ? "rdzv-endpoint"
                                                        : taken == "run_id"     ? "rdzv-id"
                                                        : taken == "local_addr" ? "local-addr"
                                                                                : "nnodes"));
  }
  const bool built_in =
      std::any_of(kKeys.begin(), kKeys.end(), [&](const Key& key) { return reads(key, backend); });
  if (!built_in) return std::nullopt;
  for (const auto& [name, value] : conf) {
    const auto key = std::find_if(kKeys.begin(), kKeys.end(), [&](const Key& known) {
      return known.name == name &&
             (reads(known, backend) || (meets_in_file(conf, backend) && reads(known, "file")));
    });
    if (key == kKeys.end()) {
      warnings.push_back(unread_warning(name, backend));
    } else if (auto refusal = check_value(*key, value)) {
      return refusal;
    }
  }
  return std::nullopt;
}

std::vector<std::string> rdzv_conf_keys() {
  std::vector<std::string> names;
  for (const auto& key : kKeys) names.emplace_back(key.name);
  return names;
}

}  // namespace elastrun::spec

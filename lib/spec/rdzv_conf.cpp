// SPDX-License-Identifier: Apache-2.0
#include "spec/rdzv_conf.hpp"

#include "core/text.hpp"
#include "spec/option_values.hpp"

#include <algorithm>
#include <array>
#include <fmt/format.h>
#include <limits>
#include <variant>

namespace elastrun::spec {
namespace {

enum class Check { Any, PositiveSeconds, PositiveCount, Boolean, StoreType, Protocol, Ports };

using Config = RendezvousConfig;
/// Where a value goes; none: the key is accepted, as by torchrun, and changes nothing.
using Target =
    std::variant<std::monostate, Duration Config::*, int Config::*, bool Config::*,
                 std::optional<bool> Config::*, PortRange Config::*, std::string Config::*>;

struct Key {
  std::string_view name;
  Check check;
  std::string_view backends;  // those that read it
  Target target{};
};

constexpr std::string_view kAll = "c10d etcd etcd-v2 file static";
constexpr std::string_view kDynamic = "c10d etcd etcd-v2 file";
constexpr std::string_view kEtcd = "etcd etcd-v2";
constexpr std::string_view kElected = "etcd etcd-v2 file";
// Where two keys have one target, the later row wins.
constexpr std::array<Key, 29> kKeys = {{
    {"join_timeout", Check::PositiveSeconds, kDynamic, &Config::join_timeout},
    {"last_call_timeout", Check::PositiveSeconds, kDynamic, &Config::last_call_timeout},
    {"close_timeout", Check::PositiveSeconds, kDynamic, &Config::close_timeout},
    {"heartbeat_timeout", Check::PositiveSeconds, kDynamic},
    {"keep_alive_interval", Check::PositiveCount, kDynamic, &Config::keep_alive_interval},
    {"keep_alive_max_attempt", Check::PositiveCount, kDynamic, &Config::keep_alive_max_attempt},
    {"read_timeout", Check::PositiveCount, kAll, &Config::read_timeout},
    {"store_type", Check::StoreType, backend::kC10d, &Config::meets_in_file},
    {"is_host", Check::Boolean, backend::kC10d, &Config::is_host},
    {"store_port", Check::Ports, kAll, &Config::store_port},
    {"secret_file", Check::Any, kAll, &Config::secret_file},
    {"timeout", Check::PositiveCount, "static etcd", &Config::timeout},
    {"rank", Check::Any, backend::kStatic},
    {"protocol", Check::Protocol, kEtcd, &Config::protocol},
    {"cert", Check::Any, kEtcd, &Config::ssl_cert},
    {"key", Check::Any, kEtcd, &Config::ssl_cert_key},
    {"cacert", Check::Any, kEtcd, &Config::ca_cert},
    {"ssl_cert", Check::Any, kEtcd, &Config::ssl_cert},
    {"ssl_cert_key", Check::Any, kEtcd, &Config::ssl_cert_key},
    {"ca_cert", Check::Any, kEtcd, &Config::ca_cert},
    {"etcd_prefix", Check::Any, kEtcd, &Config::etcd_prefix},
    {"username", Check::Any, kEtcd, &Config::user},
    {"user", Check::Any, kEtcd, &Config::user},
    {"password", Check::Any, kEtcd, &Config::password},
    {"password_file", Check::Any, kEtcd, &Config::password_file},
    {"lease_ttl", Check::PositiveCount, kElected, &Config::lease_ttl},
    {"isolation_timeout", Check::PositiveSeconds, kElected, &Config::isolation_timeout},
    {"coordinator_port", Check::Ports, kElected, &Config::coordinator_port},
    {"advertise", Check::Any, kElected, &Config::advertise},
}};

bool reads(const Key& key, std::string_view backend) {
  const auto names = split(key.backends, ' ');
  return std::find(names.begin(), names.end(), backend) != names.end();
}

Refusal not_a(std::string_view key, std::string_view what) {
  return launcher_refusal(fmt::format(
      "The rendezvous configuration option '{}' does not represent a valid {} value.", key, what));
}

// Python's text of a timedelta, for the texts of torchrun.
std::string timedelta(std::int64_t seconds) {
  const std::int64_t day = 86400;
  // Rounded down: Python writes -1 s as "-1 day, 23:59:59".
  const auto days = (seconds >= 0 ? seconds : seconds - day + 1) / day;
  const auto rest = seconds - days * day;
  const auto clock = fmt::format("{}:{:02}:{:02}", rest / 3600, rest / 60 % 60, rest % 60);
  if (days == 0) return clock;
  return fmt::format("{} day{}, {}", days, days == 1 || days == -1 ? "" : "s", clock);
}

std::optional<bool> parse_boolean(std::string_view text) {
  const auto word = to_lower(text);
  // The words of torchelastic's RendezvousParameters.get_as_bool().
  for (const std::string_view yes : {"1", "true", "t", "yes", "y"}) {
    if (word == yes) return true;
  }
  for (const std::string_view no : {"0", "false", "f", "no", "n"}) {
    if (word == no) return false;
  }
  return std::nullopt;
}

/// "N" or "A-B".
std::optional<PortRange> parse_ports(std::string_view text) {
  const auto ends = split(text, '-');
  const auto first = parse_int(ends.front()), last = parse_int(ends.back());
  if (ends.size() > 2 || !first || !last) return std::nullopt;
  if (*first < 0 || *first > *last || *last > 65535) return std::nullopt;
  return PortRange{static_cast<std::uint16_t>(*first), static_cast<std::uint16_t>(*last)};
}

bool names_file(std::string_view store_type) {
  return to_lower(trim(store_type)) == "file";
}

/// Puts a value to its member. One that means nothing counts as not given.
struct Put {
  Config& config;
  const std::string& text;
  void operator()(std::monostate) const {}
  void operator()(std::string Config::*member) const { config.*member = text; }
  void operator()(bool Config::*member) const { config.*member = names_file(text); }
  void operator()(std::optional<bool> Config::*member) const {
    config.*member = parse_boolean(text);
  }
  void operator()(PortRange Config::*member) const {
    config.*member = parse_ports(text).value_or(PortRange{});
  }
  void operator()(Duration Config::*member) const {
    const auto value = parse_float(text);
    if (value && *value > 0) config.*member = from_seconds(*value);
  }
  void operator()(int Config::*member) const {
    const auto value = parse_int(text);
    if (value && *value > 0) {
      config.*member =
          static_cast<int>(std::min<std::int64_t>(*value, std::numeric_limits<int>::max()));
    }
  }
};

// store_type=file makes the c10d backend the file one under another name.
bool meets_in_file(const RdzvConf& conf, std::string_view backend) {
  const auto type = conf.find("store_type");
  return backend == backend::kC10d && type != conf.end() && names_file(type->second);
}

std::optional<Refusal> check_number(const Key& key, const std::string& value) {
  const auto number = parse_int(value);
  if (!number) return not_a(key.name, "integer");
  if (*number > 0) return std::nullopt;
  if (key.check == Check::PositiveSeconds) {
    // torch's sentence has the name without that ending.
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
      return parse_boolean(value) ? std::nullopt : std::optional(not_a(key.name, "boolean"));
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
      if (parse_ports(value)) return std::nullopt;
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
    // The last one wins, as in torchrun.
    conf[key] = value;
  }
  return conf;
}

Answer<RdzvConf> parse_rdzv_conf(std::string_view text) {
  text = trim(text);
  return text.empty() ? RdzvConf{} : parse_rdzv_conf(split(text, ','));
}

std::string masked(std::vector<std::string> parts) {
  constexpr std::string_view kPassword = "password";
  for (auto& part : parts) {
    const auto equals = part.find('=');
    if (equals != part.npos && trim(std::string_view(part).substr(0, equals)) == kPassword)
      part.replace(equals + 1, part.npos, "***");
  }
  return join(parts, ",");
}

std::optional<Refusal> check_rdzv_conf(const RdzvConf& conf, std::string_view backend,
                                       std::vector<std::string>& warnings) {
  // torchrun hands these on as arguments with names, and Python refuses a second one.
  for (const std::string_view taken :
       {"backend", "endpoint", "run_id", "min_nodes", "max_nodes", "local_addr"}) {
    if (conf.find(std::string(taken)) == conf.end()) continue;
    return launcher_refusal(
        fmt::format("--rdzv-conf got multiple values for keyword argument '{}'", taken),
        "it has its own option, --" + std::string(taken == "backend"      ? "rdzv-backend"
                                                  : taken == "endpoint"   ? "rdzv-endpoint"
                                                  : taken == "run_id"     ? "rdzv-id"
                                                  : taken == "local_addr" ? "local-addr"
                                                                          : "nnodes"));
  }
  const bool built_in =
      std::any_of(kKeys.begin(), kKeys.end(), [&](const Key& key) { return reads(key, backend); });
  // A backend that was registered by others has keys that we do not know.
  if (!built_in) return std::nullopt;
  for (const auto& [name, value] : conf) {
    const auto key = std::find_if(kKeys.begin(), kKeys.end(), [&](const Key& known) {
      return known.name == name && (reads(known, backend) ||
                                    (meets_in_file(conf, backend) && reads(known, backend::kFile)));
    });
    if (key == kKeys.end()) {
      warnings.push_back(unread_warning(name, backend));
    } else if (auto refusal = check_value(*key, value)) {
      return refusal;
    }
  }
  return std::nullopt;
}

RendezvousConfig read_rendezvous_config(const RdzvConf& conf) {
  RendezvousConfig config;
  for (const Key& key : kKeys) {
    const auto value = conf.find(std::string(key.name));
    if (value != conf.end()) std::visit(Put{config, value->second}, key.target);
  }
  return config;
}

std::vector<std::string> rdzv_conf_keys() {
  std::vector<std::string> names;
  for (const auto& key : kKeys) names.emplace_back(key.name);
  return names;
}

}  // namespace elastrun::spec

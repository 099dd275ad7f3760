// SPDX-License-Identifier: Apache-2.0
#include "spec/option_table.hpp"

#include "core/text.hpp"

#include <algorithm>
#include <array>

namespace elastrun::spec {
namespace {

using Config = RendezvousConfig;
constexpr std::string_view kAll = "c10d etcd etcd-v2 file static";
constexpr std::string_view kDynamic = "c10d etcd etcd-v2 file";
constexpr std::string_view kEtcds = "etcd etcd-v2";
constexpr std::string_view kElected = "etcd etcd-v2 file";
// A new key is a member of RendezvousConfig, its row here, and a line in elastrun(1).
constexpr std::array<SettingRow, 29> kSettings = {{
    {"join_timeout", kDynamic, &Config::join_timeout},
    {"last_call_timeout", kDynamic, &Config::last_call_timeout},
    {"close_timeout", kDynamic, &Config::close_timeout},
    {"heartbeat_timeout", kDynamic},
    {"keep_alive_interval", kDynamic, &Config::keep_alive_interval},
    {"keep_alive_max_attempt", kDynamic, &Config::keep_alive_max_attempt},
    {"read_timeout", kAll, &Config::read_timeout},
    {"store_type", backend::kC10d, &Config::meets_in_file},
    {"is_host", backend::kC10d, &Config::is_host},
    {"store_port", kAll, &Config::store_port},
    {"secret_file", kAll, &Config::secret_file},
    {"timeout", "static etcd", &Config::timeout},
    {"rank", backend::kStatic},
    {"protocol", kEtcds, &Config::protocol},
    {"cert", kEtcds, &Config::ssl_cert},
    {"key", kEtcds, &Config::ssl_cert_key},
    {"cacert", kEtcds, &Config::ca_cert},
    {"ssl_cert", kEtcds, &Config::ssl_cert},
    {"ssl_cert_key", kEtcds, &Config::ssl_cert_key},
    {"ca_cert", kEtcds, &Config::ca_cert},
    {"etcd_prefix", kEtcds, &Config::etcd_prefix},
    {"username", kEtcds, &Config::user},
    {"user", kEtcds, &Config::user},
    {"password", kEtcds, &Config::password},
    {"password_file", kEtcds, &Config::password_file},
    {"lease_ttl", kElected, &Config::lease_ttl},
    {"isolation_timeout", kElected, &Config::isolation_timeout},
    {"coordinator_port", kElected, &Config::coordinator_port},
    {"advertise", kElected, &Config::advertise},
}};

bool same_name(std::string_view name, std::string_view spelled) {
  // All dashes or all underscores: these are the two names that torchrun gives argparse, and a
  // mixture is not one of them.
  return name == spelled || std::ranges::equal(name, spelled, [](char a, char b) {
           return (a == '-' ? '_' : a) == b;
         });
}

}  // namespace

std::span<const SettingRow> settings() {
  return kSettings;
}

const OptionRow* find_option(std::string_view name) {
  const auto found = std::find_if(options().begin(), options().end(), [&](const OptionRow& option) {
    return same_name(option.name, name);
  });
  return found == options().end() ? nullptr : &*found;
}

const OptionRow* find_toml_key(std::string_view key) {
  if (key.empty()) return nullptr;
  const auto found = std::find_if(options().begin(), options().end(),
                                  [&](const OptionRow& option) { return option.toml == key; });
  return found == options().end() ? nullptr : &*found;
}

std::string spelling(const OptionRow& option) {
  return "--" + std::string(option.name);
}

std::string underscore_spelling(const OptionRow& option) {
  if (option.name.find('-') == std::string_view::npos) return {};
  std::string text = spelling(option);
  std::replace(text.begin() + 2, text.end(), '-', '_');
  return text;
}

std::string error_name(const OptionRow& option) {
  std::string text;
  if (option.letter != 0) text = std::string("-") + option.letter + "/";
  text += spelling(option);
  const std::string other = underscore_spelling(option);
  return other.empty() ? text : text + "/" + other;
}

std::string pet_name(const OptionRow& option) {
  if (!option.pet) return {};
  std::string text = "PET_";
  for (const char c : option.name) {
    text += c == '-' ? '_' : static_cast<char>(c >= 'a' && c <= 'z' ? c - 'a' + 'A' : c);
  }
  return text;
}

std::vector<std::string> choices(const OptionRow& option) {
  return option.choices.empty() ? std::vector<std::string>{} : split(option.choices, ',');
}

std::string_view title(Group group) {
  constexpr std::array<std::string_view, 7> kTitles = {
      "What to run",           "Workers", "Nodes and rendezvous", "Restarts and ending",
      "Output of the workers", "Reports", "This launch"};
  return kTitles[static_cast<std::size_t>(group)];
}

}  // namespace elastrun::spec

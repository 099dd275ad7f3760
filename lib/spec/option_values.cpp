// SPDX-License-Identifier: Apache-2.0
#include "spec/option_values.hpp"

#include "core/signal_names.hpp"
#include "core/text.hpp"
#include "spec/argument_words.hpp"

#include <algorithm>
#include <array>
#include <csignal>
#include <fmt/format.h>
#include <limits>
#include <variant>

namespace elastrun::spec {
namespace {

bool is_digit(char c) {
  return c >= '0' && c <= '9';
}

std::optional<int> parse_small_int(std::string_view text) {
  const auto value = parse_int(text);
  if (!value || *value > std::numeric_limits<int>::max() ||
      *value < std::numeric_limits<int>::min()) {
    return std::nullopt;
  }
  return static_cast<int>(*value);
}

Refusal bad_std_map(std::string_view text) {
  return launcher_refusal(
      fmt::format("{} does not match: <^[0123]$> or <^(\\d:[0123],)*(\\d:[0123])$>", text),
      "expected 0 (none), 1 (stdout), 2 (stderr) or 3 (both), or a list by local rank: 0:3,1:2");
}

bool is_std(std::string_view text) {
  return text.size() == 1 && text[0] >= '0' && text[0] <= '3';
}

/// As Python's signal.Signals: of the real-time ones it knows the first and the last.
std::vector<std::string> known_signals() {
  std::vector<std::string> names = {"SIGRTMIN", "SIGRTMAX"};
  for (const auto& signal : signal_names()) {
    if (signal.number != SIGKILL && signal.number != SIGSTOP) names.emplace_back(signal.text);
  }
  return names;
}

/// Children, the terminal, job control, and what a fault of the agent raises, by any of their
/// names.
bool is_needed(std::string_view name) {
  constexpr std::array<int, 12> kNeeded{SIGCHLD, SIGWINCH, SIGTSTP, SIGTTIN, SIGTTOU, SIGCONT,
                                        SIGSEGV, SIGBUS,   SIGFPE,  SIGILL,  SIGABRT, SIGPIPE};
  return std::ranges::find(kNeeded, signal_number(name)) != kNeeded.end();
}

}  // namespace

Refusal launcher_refusal(std::string text, std::string hint) {
  return {std::move(text), 1, false, std::move(hint)};
}

int clamped_int(std::int64_t value) {
  return static_cast<int>(std::clamp<std::int64_t>(value, std::numeric_limits<int>::min(),
                                                   std::numeric_limits<int>::max()));
}

Refusal placed(Refusal refusal, const Override& given) {
  if (given.origin == Origin::Variable && !refusal.text.contains(given.source) &&
      !refusal.hint.contains(given.source)) {
    refusal.hint += fmt::format("{}the value comes from the variable {}",
                                refusal.hint.empty() ? "" : "\n", given.source);
  }
  if (given.origin != Origin::File || refusal.text.starts_with(given.source)) return refusal;
  refusal.text = given.source + ": " + refusal.text;
  // What a file says wrong is a fault of usage, also where torchrun ends with 1 for the same word
  // on its command line.
  refusal.exit_code = 2;
  return refusal;
}

std::string python_int_error(std::string_view text) {
  return "invalid literal for int() with base 10: " + in_quotes(text);
}

Answer<NodeRange> parse_nnodes(std::string_view text) {
  const auto parts = split(text, ':');
  constexpr const char* kExpected = "expected a number of nodes such as 2, or a range such as 1:4";
  if (parts.size() > 2) {
    return std::unexpected(
        launcher_refusal(fmt::format("nnodes={} is not in \"MIN:MAX\" format", text), kExpected));
  }
  NodeRange range;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const auto value = parse_small_int(parts[i]);
    if (!value) {
      return std::unexpected(
          launcher_refusal("--nnodes: " + python_int_error(parts[i]), kExpected));
    }
    if (i == 0) range.min = *value;
    range.max = *value;
  }
  if (range.min > 0 && range.min <= range.max) return range;
  return std::unexpected(launcher_refusal(
      fmt::format("min_nodes must be > 0 and <= max_nodes, got min_nodes={}, max_nodes={}",
                  range.min, range.max),
      "see --nnodes"));
}

Answer<StdMap> parse_std_map(std::string_view text) {
  StdMap map;
  // Python's `$` also matches before one line end.
  if (text.ends_with('\n')) text.remove_suffix(1);
  if (is_std(text)) {
    map.everyone = static_cast<unsigned>(text[0] - '0');
    return map;
  }
  for (const auto& part : split(text, ',')) {
    const auto colon = part.find(':');
    // Six digits at most, since std::stoi() throws for what an int cannot hold.
    if (colon == std::string::npos || colon == 0 || colon > 6 ||
        !std::all_of(part.begin(), part.begin() + static_cast<std::ptrdiff_t>(colon), is_digit) ||
        !is_std(std::string_view(part).substr(colon + 1))) {
      return std::unexpected(bad_std_map(text));
    }
    map.by_local_rank[std::stoi(part.substr(0, colon))] = static_cast<unsigned>(part.back() - '0');
  }
  return map;
}

Answer<std::vector<int>> parse_ranks_filter(std::string_view text) {
  std::vector<int> ranks;
  if (text.empty()) return ranks;
  for (const auto& part : split(text, ',')) {
    const auto rank = parse_small_int(part);
    if (!rank) {
      return std::unexpected(
          launcher_refusal("--local_ranks_filter must be a comma-separated list of integers e.g. "
                           "--local_ranks_filter=0,1,2",
                           in_quotes(part) + " is not an integer"));
    }
    ranks.push_back(*rank);
  }
  return ranks;
}

std::vector<std::string> split_filters(std::string_view text) {
  std::vector<std::string> filters(1);
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] != ',') {
      filters.back() += text[i];
    } else if (i + 1 < text.size() && text[i + 1] == ',') {
      // ",," is a comma within a filter.
      filters.back() += text[i++];
    } else {
      filters.emplace_back();
    }
  }
  return filters;
}

Answer<HostPort> parse_endpoint(std::string_view text) {
  const auto endpoint = parse_host_port(text);
  if (endpoint) return *endpoint;
  // torchrun's words, although 65536 is not a port: tools look for them in its output.
  if (endpoint.error() == HostPortFault::Port) {
    return std::unexpected(
        launcher_refusal(fmt::format("The port number of the rendezvous endpoint '{}' must be an "
                                     "integer between 0 and 65536.",
                                     text),
                         "a port is a number up to 65535"));
  }
  return std::unexpected(launcher_refusal(
      fmt::format("The hostname of the rendezvous endpoint '{}' must be a dot-separated list of "
                  "labels, an IPv4 address, or an IPv6 address.",
                  text),
      "expected HOST:PORT, for example node1:29400 or [fd00::1]:29400"));
}

std::vector<std::string> parse_signals(const Override& given, std::vector<std::string>& warnings) {
  std::vector<std::string> signals;
  const auto known = known_signals();
  const auto option = spelling(row(given.id));
  for (const auto& one : given.listed ? given.items : split(given.text, ',')) {
    const std::string name(trim(one));
    if (name.empty() && given.id == Opt::ForwardSignals) continue;  // "": none at all
    // signal(7): the two that cannot be caught.
    if (name == "SIGKILL" || name == "SIGSTOP") {
      warnings.push_back(
          fmt::format("{}: {} cannot be handled by any process; it is left out", option, name));
      continue;
    }
    if (given.id == Opt::ForwardSignals && is_needed(name)) {
      warnings.push_back(
          fmt::format("{}: {} has a meaning for elastrun itself; it is left out", option, name));
      continue;
    }
    if (std::find(known.begin(), known.end(), name) != known.end()) {
      if (std::find(signals.begin(), signals.end(), name) == signals.end()) signals.push_back(name);
      continue;
    }
    const auto near = nearest(name, known);
    warnings.push_back(fmt::format("{}: unknown signal {}{}, ignored", option, in_quotes(name),
                                   near ? fmt::format(" (did you mean {}?)", *near) : ""));
  }
  return signals;
}

namespace {

using Refused = std::optional<Refusal>;
using Config = RendezvousConfig;

bool reads(const SettingRow& row, std::string_view backend) {
  return std::ranges::count(split(row.backends, ' '), backend) > 0;
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

/// Fills one member of the rendezvous configuration from the text of its key. A text that is
/// refused leaves the member as it was.
struct SettingReader {
  Config& config;
  const SettingRow& row;
  const std::string& text;

  Refused not_a(std::string_view what) const {
    return launcher_refusal(
        fmt::format("The rendezvous configuration option '{}' does not represent a valid {} value.",
                    row.name, what));
  }
  Refused check_number() const {
    const auto number = parse_int(text);
    if (!number) return not_a("integer");
    if (*number > 0) return std::nullopt;
    if (row.name == "read_timeout") {
      return launcher_refusal("A read_timeout has to be a whole number above 0.");
    }
    if (row.name.ends_with("_timeout")) {
      // torch's sentence has the name without that ending.
      return launcher_refusal(
          fmt::format("The {} timeout ({}) must be positive.",
                      row.name.substr(0, row.name.rfind('_')), timedelta(*number)),
          fmt::format("see {} in --rdzv-conf", row.name));
    }
    return launcher_refusal(
        fmt::format("The rendezvous configuration option '{}' must be positive, got {}.", row.name,
                    *number),
        "with 0 every node would count as lost at once");
  }

  Refused operator()(std::monostate) const {
    return row.name.ends_with("_timeout") ? check_number() : std::nullopt;
  }
  Refused operator()(Duration Config::*member) const {
    // A program may give a fraction, which the command line refuses as torchrun does.
    const auto value = parse_float(text);
    if (value && *value > 0) config.*member = from_seconds(*value);
    return check_number();
  }
  Refused operator()(int Config::*member) const {
    const auto refusal = check_number();
    if (!refusal) config.*member = clamped_int(*parse_int(text));
    return refusal;
  }
  Refused operator()(bool Config::*member) const {  // store_type
    const auto type = to_lower(trim(text));
    config.*member = type == "file";
    if (type == "tcp" || type == "file") return std::nullopt;
    return launcher_refusal("Invalid store type given. Currently only supports file and tcp.");
  }
  Refused operator()(std::optional<bool> Config::*member) const {
    config.*member = parse_boolean(text);
    return config.*member ? std::nullopt : not_a("boolean");
  }
  Refused operator()(PortRange Config::*member) const {
    const auto ports = parse_ports(text);
    if (ports) config.*member = *ports;
    if (ports) return std::nullopt;
    return launcher_refusal(
        fmt::format("The rendezvous configuration option '{}' must be a port or a range of ports "
                    "such as 29500-29600, got '{}'.",
                    row.name, text));
  }
  Refused operator()(std::string Config::*member) const {
    config.*member = text;
    if (row.name != "protocol" || text == "http" || text == "https") return std::nullopt;
    return launcher_refusal("The protocol must be HTTP or HTTPS.",
                            fmt::format("protocol={} in --rdzv-conf is neither", text));
  }
};

Refused read_setting(Config& config, const SettingRow& row, const std::string& text) {
  return std::visit(SettingReader{config, row, text}, row.field);
}

std::string unread_warning(std::string_view key, std::string_view backend) {
  if (key == "timeout") {
    return fmt::format(
        "--rdzv-conf: the {} backend does not read 'timeout'; join_timeout is the key that limits "
        "how long the nodes wait for each other",
        backend);
  }
  std::vector<std::string> names;
  for (const auto& known : settings()) {
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

std::vector<std::string> rdzv_conf_parts(std::string_view text) {
  text = trim(text);
  return text.empty() ? std::vector<std::string>() : split(text, ',');
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
  constexpr std::array<std::array<std::string_view, 2>, 6> kTaken = {{
      {"backend", "rdzv-backend"},
      {"endpoint", "rdzv-endpoint"},
      {"run_id", "rdzv-id"},
      {"min_nodes", "nnodes"},
      {"max_nodes", "nnodes"},
      {"local_addr", "local-addr"},
  }};
  for (const auto& [taken, option] : kTaken) {
    if (!conf.contains(std::string(taken))) continue;
    return launcher_refusal(
        fmt::format("--rdzv-conf got multiple values for keyword argument '{}'", taken),
        fmt::format("it has its own option, --{}", option));
  }
  // A backend that was registered by others has keys that we do not know.
  if (std::ranges::count(backend::kBuiltIn, backend) == 0) return std::nullopt;
  // store_type=file makes the c10d backend the file one under another name.
  const bool by_file = backend == backend::kC10d && read_rendezvous_config(conf).meets_in_file;
  Config scratch;
  for (const auto& [name, value] : conf) {
    const auto key = std::ranges::find_if(settings(), [&](const SettingRow& known) {
      return known.name == name &&
             (reads(known, backend) || (by_file && reads(known, backend::kFile)));
    });
    if (key == settings().end()) {
      warnings.push_back(unread_warning(name, backend));
    } else if (auto refusal = read_setting(scratch, *key, value)) {
      return refusal;
    }
  }
  return std::nullopt;
}

RendezvousConfig read_rendezvous_config(const RdzvConf& conf) {
  RendezvousConfig config;
  for (const SettingRow& key : settings()) {
    const auto value = conf.find(std::string(key.name));
    // One that is refused counts as not given: a program may hand on what it likes.
    if (value != conf.end()) read_setting(config, key, value->second);
  }
  return config;
}

}  // namespace elastrun::spec

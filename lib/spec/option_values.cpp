// SPDX-License-Identifier: Apache-2.0
#include "spec/option_values.hpp"

#include "core/signal_names.hpp"
#include "core/text.hpp"

#include <algorithm>
#include <arpa/inet.h>
#include <array>
#include <charconv>
#include <csignal>
#include <fmt/format.h>
#include <limits>
#include <optional>
#include <type_traits>
#include <variant>

namespace elastrun::spec {

namespace {

std::optional<int> parse_small_int(std::string_view text) {
  const auto value = parse_int(text);
  if (!value || *value > std::numeric_limits<int>::max() ||
      *value < std::numeric_limits<int>::min()) {
    return std::nullopt;
  }
  return static_cast<int>(*value);
}

/// The nearest number that an int can be.
int clamped_int(std::int64_t value) {
  return static_cast<int>(std::clamp<std::int64_t>(value, std::numeric_limits<int>::min(),
                                                   std::numeric_limits<int>::max()));
}

bool is_std(std::string_view text) {
  return text.size() == 1 && text[0] >= '0' && text[0] <= '3';
}

/// The names of Python's signal.Signals, which has the first and the last of the real-time ones.
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
  // The words of torchelastic's RendezvousParameters.get_as_bool(): five for true, then for false.
  constexpr std::array<std::string_view, 10> kWords = {"1", "true",  "t", "yes", "y",
                                                       "0", "false", "f", "no",  "n"};
  const auto at = std::ranges::find(kWords, to_lower(text)) - kWords.begin();
  return at == std::ssize(kWords) ? std::nullopt : std::optional(at < 5);
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

using SinkKind = SinkChoice::Kind;

struct SinkRow {
  std::string_view name;
  SinkKind kind;
  std::string_view argument;  // for people; in brackets: may be left out
  std::string_view example;
  enum class Grain { Each, Seconds, Totals } grain;  // of the samples of workers, unless it is said
};
using Grain = SinkRow::Grain;
constexpr std::array<SinkRow, 7> kSinkRows = {{
    {"console", SinkKind::Console, "[:GROUP]", "console", Grain::Each},
    {"jsonl", SinkKind::JsonLines, ":FILE", "jsonl:run.jsonl", Grain::Each},
    {"prometheus", SinkKind::Prometheus, ":FILE[;openmetrics]",
     "prometheus:/var/lib/node_exporter/job.prom", Grain::Totals},
    {"tensorboard", SinkKind::TensorBoard, ":DIR", "tensorboard:runs", Grain::Seconds},
    {"trace", SinkKind::Trace, ":FILE", "trace:trace.json", Grain::Seconds},
    {"otlp", SinkKind::Otlp, ":URL", "otlp:http://collector:4318", Grain::Totals},
    {"exec", SinkKind::Exec, ":COMMAND", "exec:python3 collect.py", Grain::Seconds},
}};

std::unexpected<Refusal> refuse_sink(std::string_view source, std::string text, std::string hint) {
  return std::unexpected(Refusal{fmt::format("{}: {}", source, std::move(text)), std::move(hint)});
}

/// Checks an argument that is there: the fault; empty: none.
std::string fault_of(SinkKind kind, std::string_view argument) {
  // The kernel would end the name or command there, and another one would be used.
  if (argument.find('\0') != argument.npos) return "a zero byte is in it";
  if (kind == SinkKind::Otlp && !argument.starts_with("http://") &&
      !argument.starts_with("https://")) {
    return "expected http://HOST[:PORT][/PATH] or https://...";
  }
  return {};
}

constexpr std::string_view kWindow = ";window=";

/// Takes the option off the end of a sink's text: "" or the value of window.
std::string_view take_window(std::string_view& text) {
  const auto at = text.rfind(kWindow);
  if (at == text.npos) return {};
  const auto value = text.substr(at + kWindow.size());
  // A command of exec: may hold those words in its middle.
  if (value.empty() || value.find_first_of(" ;:/") != value.npos) return {};
  text = text.substr(0, at);
  return value;
}

/// "console", "tensorboard:runs;window=0", "prometheus:job.om;openmetrics"; `source` is who said
/// it.
Answer<SinkChoice> parse_sink_choice(std::string_view text, std::string_view source) {
  auto rest = text;
  const auto window = take_window(rest);
  const auto colon = rest.find(':');
  const auto name = rest.substr(0, colon);
  auto argument = colon == rest.npos ? std::string_view() : rest.substr(colon + 1);
  const auto row = std::ranges::find(kSinkRows, name, &SinkRow::name);
  if (row == kSinkRows.end()) {
    auto names = metrics_sink_names();
    names.insert(names.begin(), "none");
    const auto near = nearest(name, names);
    return refuse_sink(source, fmt::format("unknown sink {}", in_quotes(name)),
                       (near ? fmt::format("did you mean {}? ", *near) : std::string()) +
                           fmt::format("The sinks are none, {}", known_metrics_sinks()));
  }
  constexpr std::string_view kOpenMetrics = ";openmetrics";
  const bool open = row->kind == SinkKind::Prometheus && argument.ends_with(kOpenMetrics);
  if (open) argument.remove_suffix(kOpenMetrics.size());
  if (argument.empty() && !row->argument.starts_with('[')) {
    return refuse_sink(source, fmt::format("the sink {} needs {}", name, row->argument.substr(1)),
                       fmt::format("for example {}", row->example));
  }
  const auto fault = argument.empty() ? std::string() : fault_of(row->kind, argument);
  if (!fault.empty()) {
    return refuse_sink(source,
                       fmt::format("{} of the sink {}: {}", in_quotes(argument), name, fault),
                       fmt::format("for example {}", row->example));
  }
  if (!window.empty() && row->grain == Grain::Totals) {
    return refuse_sink(source, fmt::format("the sink {} has no window", name),
                       "it takes totals, with the count and the sum of all samples");
  }
  if (!window.empty() && window != "0" && window != "1s") {
    return refuse_sink(
        source, fmt::format("{} is no window of the sink {}", in_quotes(window), name),
        "expected 0 (each sample) or 1s (their sum), for example jsonl:run.jsonl;window=1s");
  }
  const bool each = window.empty() ? row->grain == Grain::Each : window == "0";
  return SinkChoice{row->kind, std::string(text), std::string(argument), each, {}, open};
}

/// "a,,b,c" is "a,b" and "c"; the empty text is one empty needle.
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

/// "3" or "0:1,1:2"; ranks may have several digits, unlike torchrun's.
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
        part.find_first_not_of("0123456789") != colon ||
        !is_std(std::string_view(part).substr(colon + 1))) {
      return std::unexpected(launcher_refusal(
          fmt::format("{} does not match: <^[0123]$> or <^(\\d:[0123],)*(\\d:[0123])$>", text),
          "expected 0 (none), 1 (stdout), 2 (stderr) or 3 (both), or a list by local rank: "
          "0:3,1:2"));
    }
    map.by_local_rank[std::stoi(part.substr(0, colon))] = static_cast<unsigned>(part.back() - '0');
  }
  return map;
}

/// "0,1,7"; empty: no filter.
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

constexpr std::string_view kListenForms =
    "expected PORT or ADDRESS:PORT, such as 9400 (this machine only), 0.0.0.0:9400 or [::]:9400 "
    "(everybody); port 0 takes one that is free";

std::optional<std::uint16_t> parse_port(std::string_view text) {
  std::uint16_t port = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), port);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return port;
}

bool is_address(int family, const std::string& text) {
  in6_addr space{};
  return ::inet_pton(family, text.c_str(), &space) == 1;
}

/// "9400" and ":9400" are on loopback, as "localhost:9400"; "0.0.0.0:9400" and "[::]:9400" for
/// everybody. Names are refused: one may have several addresses. `option` begins the text of a
/// refusal.
Answer<ListenAddress> parse_listen_address(std::string_view option, std::string_view text) {
  const auto refuse = [&](std::string_view why) {
    return std::unexpected(
        Refusal{fmt::format("{} {}: {}", option, printable(std::string(text)), why),
                std::string(kListenForms)});
  };
  ListenAddress at;
  const auto colon = text.rfind(':');
  const bool only_port = colon == text.npos;
  const auto port = parse_port(only_port ? text : text.substr(colon + 1));
  if (!port) return refuse("the port is a number from 0 to 65535");
  at.port = *port;
  if (only_port || colon == 0) return at;
  std::string host(text.substr(0, colon));
  const bool bracketed = host.starts_with('[') && host.ends_with(']');
  if (bracketed) host = host.substr(1, host.size() - 2);
  // The default of `at`, without a resolver: localhost is loopback (RFC 6761).
  if (host == "localhost") return at;
  // "::1:9400" is an address as a whole: where its port begins cannot be seen.
  if (!bracketed && host.contains(':')) return refuse("an IPv6 address stands in brackets");
  if (!is_address(bracketed ? AF_INET6 : AF_INET, host)) {
    return refuse(fmt::format("{} is not a numeric address", printable(host)));
  }
  at.address = std::move(host);
  return at;
}

/// Fills one member from one option, whose text has the form of its kind.
struct Filler {
  JobSpec& job;
  const OptionRow& option;
  const Override& given;
  Refused refused{};

  /// "max_restarts": as torchrun names it in its errors.
  std::string key() const {
    std::string name(option.name);
    std::ranges::replace(name, '-', '_');
    return name;
  }
  bool is_on() const { return parse_int(given.text).value_or(0) != 0; }
  std::optional<std::size_t> choice() const {
    const auto all = choices(option);
    const auto found = std::ranges::find(all, given.text);
    if (found == all.end()) return std::nullopt;
    return static_cast<std::size_t>(found - all.begin());
  }

  void operator()(std::monostate) {}
  void operator()(std::string JobSpec::*member) { job.*member = given.text; }
  /// Takes a choice of two for true if it is not the default.
  void operator()(bool JobSpec::*member) {
    job.*member = option.kind == Kind::Flag ? is_on() : given.text != option.fallback;
  }
  void operator()(int JobSpec::*member) {
    // Never empty: check_text() or its like has looked at the text of each source.
    const std::int64_t value = *parse_int(given.text);
    if (value < 0) {
      refused = launcher_refusal(key() + " must be >= 0", fmt::format("see {}", spelling(option)));
    }
    job.*member = clamped_int(value);
  }
  void operator()(double JobSpec::*member) {
    job.*member = *parse_float(given.text);
    if (!(job.*member > 0))
      refused = launcher_refusal(fmt::format("{} must be > 0, got {}", key(), given.text));
  }
  /// torchrun checks the option but not its own variable, where less than 0 means not to wait.
  void operator()(Duration JobSpec::*member) {
    const bool whole = option.kind == Kind::Int;
    const double value =
        whole ? static_cast<double>(*parse_int(given.text)) : *parse_float(given.text);
    if (!(value >= 0) && (option.variable.empty() || given.source != option.variable)) {
      refused = launcher_refusal(fmt::format("{} must be non-negative, got {}", key(), given.text));
      return;
    }
    job.*member = from_seconds(std::clamp(value, 0.0, kLongestSeconds));
  }
  void operator()(StdMap JobSpec::*member) {
    take(parse_std_map(given.text), member);
    if (refused && given.origin != Origin::File)
      refused->text = fmt::format("{}: {}", given.source, refused->text);
  }
  void operator()(std::vector<int> JobSpec::*member) {
    take(parse_ranks_filter(given.text), member);
  }
  /// An empty text is one filter that fits every line, an empty list is none.
  void operator()(std::optional<std::vector<std::string>> JobSpec::*member) {
    if (given.origin == Origin::Default || (given.listed && given.items.empty())) return;
    job.*member = given.listed ? given.items : split_filters(given.text);
  }
  void operator()(std::optional<ListenAddress> JobSpec::*member) {
    if (given.text.empty()) return;
    const bool by_line = given.origin == Origin::CommandLine;
    take(parse_listen_address(by_line ? spelling(option) : given.source, given.text), member);
  }
  template <class Parsed, class Member>
  void take(Answer<Parsed> parsed, Member JobSpec::*member) {
    if (!parsed) {
      refused = parsed.error();
    } else {
      job.*member = std::move(*parsed);
    }
  }
  template <class Enum>
  requires std::is_enum_v<Enum>
  void operator()(Enum JobSpec::*member) {
    if (const auto index = choice()) {
      // Without a default the first enumerator stands for "not given" and has no word.
      job.*member = static_cast<Enum>(*index + (option.fallback.empty() ? 1 : 0));
    }
  }
};

}  // namespace

Refusal launcher_refusal(std::string text, std::string hint) {
  return {std::move(text), std::move(hint), 1};
}

Refusal refuse_argument(const OptionRow& option, std::string text, std::string hint) {
  return {fmt::format("argument {}: {}", error_name(option), std::move(text)), std::move(hint), 2,
          true};
}

std::string in_quotes(std::string_view text) {
  // torchrun's messages use Python's repr(), and tools look for it.
  const bool has_single = text.find('\'') != std::string_view::npos;
  const bool has_double = text.find('"') != std::string_view::npos;
  const char quote = has_single && !has_double ? '"' : '\'';
  std::string out(1, quote);
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == quote || c == '\\') {
      out += '\\';
      out += c;
    } else if (c == '\n' || c == '\t' || c == '\r') {
      out += c == '\n' ? "\\n" : c == '\t' ? "\\t" : "\\r";
    } else if (byte < 0x20 || byte == 0x7f) {
      out += fmt::format("\\x{:02x}", byte);
    } else {
      out += c;
    }
  }
  return out + quote;
}

std::optional<Refusal> check_text(const OptionRow& option, std::string_view text) {
  if (option.kind == Kind::Int && !parse_int(text)) {
    return refuse_argument(option, "invalid int value: " + in_quotes(text),
                           "expected a whole number");
  }
  if (option.kind == Kind::Float && !parse_float(text)) {
    return refuse_argument(option, "invalid float value: " + in_quotes(text), "expected a number");
  }
  if (option.kind != Kind::Choice) return std::nullopt;
  const auto allowed = choices(option);
  if (std::find(allowed.begin(), allowed.end(), text) != allowed.end()) return std::nullopt;
  std::vector<std::string> shown;
  for (const auto& choice : allowed) shown.push_back(in_quotes(choice));
  const auto near = nearest(text, allowed);
  return refuse_argument(
      option,
      fmt::format("invalid choice: {} (choose from {})", in_quotes(text), join(shown, ", ")),
      near ? "did you mean " + *near + "?" : "");
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
    if (name.empty() && given.id == "forward-signals"_opt) continue;  // "": none at all
    // signal(7): the two that cannot be caught.
    if (name == "SIGKILL" || name == "SIGSTOP") {
      warnings.push_back(
          fmt::format("{}: {} cannot be handled by any process; it is left out", option, name));
      continue;
    }
    if (given.id == "forward-signals"_opt && is_needed(name)) {
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

std::string known_metrics_sinks() {
  std::vector<std::string> all;
  for (const auto& row : kSinkRows) all.push_back(fmt::format("{}{}", row.name, row.argument));
  return join(all, ", ");
}

std::vector<std::string> metrics_sink_names(std::string_view sign) {
  std::vector<std::string> all;
  for (const auto& row : kSinkRows)
    all.push_back(fmt::format("{}{}", row.name, row.argument.starts_with(':') ? sign : ""));
  return all;
}

bool is_severity(std::string_view text) {
  constexpr std::array<std::string_view, 7> kNames = {"trace",   "debug", "info", "warn",
                                                      "warning", "error", "fatal"};
  return std::ranges::find(kNames, text) != kNames.end();
}

Answer<std::vector<SinkChoice>> metrics_sinks(const Override& given,
                                              const std::vector<MetricsRouteRow>& rows) {
  std::vector<SinkChoice> sinks;
  const auto add = [&](const std::string& text, const std::string& source) -> Answer<std::size_t> {
    // One sink for one text: opened twice, a file would get each record twice.
    const auto known = std::ranges::find(sinks, text, &SinkChoice::text);
    if (known != sinks.end()) return static_cast<std::size_t>(known - sinks.begin());
    auto sink = parse_sink_choice(text, source);
    if (!sink) return std::unexpected(sink.error());
    sinks.push_back(std::move(*sink));
    return sinks.size() - 1;
  };
  for (const auto& text : given.listed ? given.items : split_filters(given.text)) {
    if (text == "none" || text.empty()) continue;
    const auto added = add(text, given.source);
    if (!added) return std::unexpected(added.error());
  }
  for (const auto& row : rows) {
    const auto added = add(row.sink, row.source);
    if (!added) return std::unexpected(added.error());
    sinks[*added].routes.push_back(row.route);
  }
  return sinks;
}

Answer<std::vector<std::pair<std::string, std::vector<std::string>>>> stat_aggregations(
    const Override& given) {
  static const std::vector<std::string> kNames = {"value", "mean",   "count",    "sum", "max",
                                                  "min",   "stddev", "p50",      "p90", "p95",
                                                  "p99",   "p999",   "histogram"};
  std::vector<std::pair<std::string, std::vector<std::string>>> all;
  for (const auto& text : given.listed ? given.items : split_filters(given.text)) {
    if (text.empty()) continue;
    // The last one: a pattern may hold the sign, names of aggregations do not.
    const auto equals = text.rfind('=');
    const auto pattern = text.substr(0, equals);
    auto names =
        equals == text.npos ? std::vector<std::string>() : split(text.substr(equals + 1), '+');
    const auto strange = std::ranges::find_if(names, [](const std::string& name) {
      return std::ranges::find(kNames, name) == kNames.end();
    });
    if (pattern.empty() || names.empty()) {
      return refuse_sink(given.source, fmt::format("{} names no aggregations", in_quotes(text)),
                         "expected PATTERN=NAME[+NAME...], for example 'train.*=p95+p99'");
    }
    if (strange != names.end()) {
      return refuse_sink(given.source, fmt::format("unknown aggregation {}", in_quotes(*strange)),
                         fmt::format("the aggregations are {}", join(kNames, ", ")));
    }
    all.emplace_back(pattern, std::move(names));
  }
  return all;
}

std::optional<Refusal> fill_fields(JobSpec& job, const Values& values) {
  for (const auto& option : options()) {
    Filler filler{job, option, values[option.id()]};
    std::visit(filler, option.field);
    if (filler.refused) return placed(std::move(*filler.refused), filler.given);
  }
  return std::nullopt;
}

}  // namespace elastrun::spec

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

}  // namespace elastrun::spec

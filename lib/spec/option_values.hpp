// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/host.hpp"
#include "spec/sources.hpp"

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

/// Text to values, with torchrun's rules and its texts. Refusals of texts carry exit code 1, as the
/// exceptions of torchrun's launcher do.
namespace elastrun::spec {

/// A refusal as torchrun's launcher raises it.
Refusal launcher_refusal(std::string text, std::string hint = {});
/// Adds to the refusal of a value from the job file, which torchrun does not have, where it stands
/// (unless the text begins with it), and makes the exit code 2.
Refusal placed(Refusal refusal, const Override& given);
/// "argument --role: TEXT", as argparse names the option that is wrong; with the usage.
Refusal refuse_argument(const OptionRow& option, std::string text, std::string hint = {});
/// Checks a value as argparse does: "argument --max-restarts/--max_restarts: invalid int value:
/// 'x'". Choices are not checked when the text comes from a variable, as in torchrun.
std::optional<Refusal> check_text(const OptionRow& option, std::string_view text);
/// 'text', with Python's choice of quotes and escapes.
std::string in_quotes(std::string_view text);
/// "invalid literal for int() with base 10: 'x'".
std::string python_int_error(std::string_view text);

constexpr double kLongestSeconds = 3e9;  // more does not fit the clock's nanoseconds

struct NodeRange {
  int min = 1, max = 1;
  bool operator==(const NodeRange&) const = default;
};
/// "4" or "1:4".
Answer<NodeRange> parse_nnodes(std::string_view text);

/// "host", "host:29400", "[::1]:29400". Empty: localhost. Refused in torchrun's words.
Answer<HostPort> parse_endpoint(std::string_view text);

/// The names of --signals-to-handle or --forward-signals, trimmed, each once. Left out and named in
/// `warnings`: unknown ones, SIGKILL and SIGSTOP, and of the second those that the agent needs.
std::vector<std::string> parse_signals(const Override& given, std::vector<std::string>& warnings);

using RdzvConf = std::map<std::string, std::string>;

/// One part per entry, "key=value"; the first `=` splits, blanks around both are dropped, the last
/// of equal keys counts. Fails with torchrun's texts and exit code 1.
Answer<RdzvConf> parse_rdzv_conf(const std::vector<std::string>& parts);
/// Splits the text of --rdzv-conf into its parts; a blank text has none.
std::vector<std::string> rdzv_conf_parts(std::string_view text);

/// One text of the parts, to be shown: with "***" in place of a password.
std::string masked(std::vector<std::string> parts);

/// Checks the keys and values that `backend` reads. Keys that are never read are named in
/// `warnings` with the nearest one that is read. Backends that are not built in are not checked.
std::optional<Refusal> check_rdzv_conf(const RdzvConf& conf, std::string_view backend,
                                       std::vector<std::string>& warnings);

/// Reads what the built-in backends use of it, unchecked: a value that means nothing is as if it
/// were not given.
RendezvousConfig read_rendezvous_config(const RdzvConf& conf);

/// The sinks that `given` names, in order, each once, and those that `rows` name beside them; what
/// a row selects is all that its sink gets. Refuses (exit code 2) a name that is not known, and an
/// argument that is missing or of the wrong form.
Answer<std::vector<SinkChoice>> metrics_sinks(const Override& given,
                                              const std::vector<MetricsRouteRow>& rows);

/// "train.*=p95+p99": patterns of names, and what the Stats of those are summarised to.
Answer<std::vector<std::pair<std::string, std::vector<std::string>>>> stat_aggregations(
    const Override& given);

/// "console", "jsonl", ...: with `sign` behind those that need an argument.
std::vector<std::string> metrics_sink_names(std::string_view sign = {});
/// "console[:GROUP], jsonl:FILE, ...": for people.
std::string known_metrics_sinks();
/// "trace", "debug", "info", "warn", "error", "fatal"; also "warning".
bool is_severity(std::string_view text);

/// Fills each member of the job that a row of the option table names with the value that won. A
/// whole number or a time below zero and a number that is not above it are refused, in torchrun's
/// words; numbers that do not fit are the largest that do.
std::optional<Refusal> fill_fields(JobSpec& job, const Values& values);

}  // namespace elastrun::spec

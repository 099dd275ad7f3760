// SPDX-License-Identifier: Apache-2.0
#include "spec/option_fields.hpp"

#include "core/text.hpp"
#include "spec/listen_address.hpp"
#include "spec/option_values.hpp"

#include <algorithm>
#include <cmath>
#include <fmt/format.h>
#include <limits>
#include <type_traits>
#include <variant>

namespace elastrun::spec {
namespace {

using Refused = std::optional<Refusal>;

constexpr double kLongestSeconds = 3e9;  // seconds; more does not fit the clock's nanoseconds

/// Fills one member from one option, whose text has the form of its kind.
struct Filler {
  JobSpec& job;
  const OptionRow& option;
  const Override& given;

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

  Refused operator()(std::monostate) const { return std::nullopt; }
  Refused operator()(std::string JobSpec::*member) const {
    job.*member = given.text;
    return std::nullopt;
  }
  /// Of a choice: whether it is the other one, not the default.
  Refused operator()(bool JobSpec::*member) const {
    job.*member = option.kind == Kind::Flag ? is_on() : given.text != option.fallback;
    return std::nullopt;
  }
  Refused operator()(int JobSpec::*member) const {
    // Never empty: check_text() or its like has looked at the text of each source.
    const std::int64_t value = *parse_int(given.text);
    if (value < 0) {
      return launcher_refusal(key() + " must be >= 0", fmt::format("see {}", spelling(option)));
    }
    job.*member = static_cast<int>(std::min<std::int64_t>(value, std::numeric_limits<int>::max()));
    return std::nullopt;
  }
  Refused operator()(double JobSpec::*member) const {
    job.*member = *parse_float(given.text);
    if (job.*member > 0) return std::nullopt;
    return launcher_refusal(fmt::format("{} must be > 0, got {}", key(), given.text));
  }
  /// torchrun checks the option but not its own variable, where less than 0 means not to wait.
  Refused operator()(Duration JobSpec::*member) const {
    const bool whole = option.kind == Kind::Int;
    const double value =
        whole ? static_cast<double>(*parse_int(given.text)) : *parse_float(given.text);
    if (!(value >= 0) && (option.variable.empty() || given.source != option.variable)) {
      return launcher_refusal(fmt::format("{} must be non-negative, got {}", key(), given.text));
    }
    job.*member = from_seconds(std::clamp(value, 0.0, kLongestSeconds));
    return std::nullopt;
  }
  Refused operator()(StdMap JobSpec::*member) const {
    auto refusal = take(parse_std_map(given.text), member);
    if (refusal && given.origin != Origin::File) {
      refusal->text = fmt::format("{}: {}", given.source, refusal->text);
    }
    return refusal;
  }
  Refused operator()(std::vector<int> JobSpec::*member) const {
    return take(parse_ranks_filter(given.text), member);
  }
  /// An empty text is one filter that fits every line, an empty list is none.
  Refused operator()(std::optional<std::vector<std::string>> JobSpec::*member) const {
    if (given.origin == Origin::Default || (given.listed && given.items.empty())) return {};
    job.*member = given.listed ? given.items : split_filters(given.text);
    return std::nullopt;
  }
  Refused operator()(std::optional<ListenAddress> JobSpec::*member) const {
    if (given.text.empty()) return std::nullopt;
    const bool by_line = given.origin == Origin::CommandLine;
    return take(parse_listen_address(by_line ? spelling(option) : given.source, given.text),
                member);
  }
  template <class Parsed, class Member>
  Refused take(Answer<Parsed> parsed, Member JobSpec::*member) const {
    if (!parsed) return parsed.error();
    job.*member = std::move(*parsed);
    return std::nullopt;
  }
  template <class Enum>
  requires std::is_enum_v<Enum> Refused operator()(Enum JobSpec::*member) const {
    if (const auto index = choice()) {
      // Without a default the first enumerator stands for "not given" and has no word.
      job.*member = static_cast<Enum>(*index + (option.fallback.empty() ? 1 : 0));
    }
    return std::nullopt;
  }
};

}  // namespace

std::optional<Refusal> fill_fields(JobSpec& job, const Values& values) {
  for (const auto& option : options()) {
    auto refusal = std::visit(Filler{job, option, values[option.id]}, option.field);
    if (refusal) return placed(std::move(*refusal), values[option.id]);
  }
  return std::nullopt;
}

}  // namespace elastrun::spec

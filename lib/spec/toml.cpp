// SPDX-License-Identifier: Apache-2.0
#include "core/text.hpp"
#include "spec/option_values.hpp"
#include "spec/sources.hpp"

#include <algorithm>
#include <fmt/format.h>

// Its parser asserts that a section's name begins as one does, before it looks: with "[.a]" that
// ended the program. What follows the assertion refuses such a name with its place.
#undef NDEBUG  // with which it would be taken for granted
#define TOML_ASSERT(expression) static_cast<void>(0)
// Results and not exceptions, as everywhere here.
#define TOML_EXCEPTIONS 0
#define TOML_HEADER_ONLY 1
#define TOML_ENABLE_FORMATTERS 0
#include <toml++/toml.h>

namespace elastrun::spec {
namespace {

std::optional<std::string> scalar_text(const toml::node& node) {
  if (const auto* text = node.as_string()) return text->get();
  if (const auto* number = node.as_integer()) return fmt::to_string(number->get());
  if (const auto* number = node.as_floating_point()) return fmt::to_string(number->get());
  return std::nullopt;
}

std::string shown(const toml::node& node) {
  if (const auto* text = node.as_string()) return in_quotes(text->get());
  if (const auto number = scalar_text(node)) return *number;
  if (const auto* flag = node.as_boolean()) return flag->get() ? "true" : "false";
  if (node.is_array()) return "a list";
  if (node.is_table()) return "a table";
  return "a date or time";
}

/// Advice about text that is not TOML, by the parser's words for it.
std::string hint_for(std::string_view problem) {
  if (problem.contains("redefine")) return "a key stands once in its section; keep one of the two";
  if (problem.contains("table header") || problem.contains("expected ']'") ||
      problem.contains("expected '}'") || problem.contains("unterminated")) {
    return "a bracket or a quote is opened and not closed";
  }
  return "text stands in double quotes; --print-config shows every key";
}

class Loader {
 public:
  explicit Loader(std::string_view path) : path_(path) {}

  Answer<TomlJob> load(const toml::parse_result& result) {
    if (!result) {
      const auto& error = result.error();
      refuse(error.source(), std::string(error.description()), hint_for(error.description()));
      return std::unexpected(std::move(*refused_));
    }
    for (const auto& [section, node] : result.table()) {
      take_section(section, node);
      if (refused_) return std::unexpected(std::move(*refused_));
    }
    roles_.text = join(roles_.items, ",");
    if (!roles_.items.empty()) job_.given.push_back(std::move(roles_));
    return std::move(job_);
  }

 private:
  /// The step that refuses is the last one.
  void refuse(const toml::source_region& at, std::string text, std::string hint = {}) {
    refused_ = {fmt::format("{}:{}:{}: {}", path_, at.begin.line, at.begin.column, std::move(text)),
                std::move(hint)};
  }
  std::string source(const toml::node& node) const {
    return fmt::format("{}:{}", path_, node.source().begin.line);
  }

  void wrong_type(const toml::node& node, std::string_view key, std::string_view expected) {
    refuse(node.source(), fmt::format("{} is {}; expected {}", key, shown(node), expected));
  }

  static std::vector<std::string> sections() {
    std::vector<std::string> names = {"env", "role"};
    for (const auto& option : options()) {
      const auto name = std::string(option.toml.substr(0, option.toml.find('.')));
      if (!name.empty() && names.back() != name) names.push_back(name);
    }
    return names;
  }

  static std::vector<std::string> keys_of(std::string_view section) {
    std::vector<std::string> names;
    if (section == "job") names = {"script", "args"};
    if (section == "metrics") names = {"route"};
    for (const auto& option : options()) {
      const auto point = option.toml.find('.');
      if (option.toml.substr(0, point) == section)
        names.emplace_back(option.toml.substr(point + 1));
    }
    return names;
  }

  void take_section(const toml::key& name, const toml::node& node) {
    const auto known = sections();
    const std::string text(name.str());
    // An unknown key is an error and not a warning: a mistyped max_restarts would be found out when
    // the job fails for the first time.
    const bool is_key = text == "role" && !node.is_table();  // of [job]
    if (is_key || std::find(known.begin(), known.end(), text) == known.end()) {
      return refuse(name.source(), fmt::format("unknown section or key '{}'", text),
                    section_hint(text, node, known));
    }
    const auto* table = node.as_table();
    if (table == nullptr) return wrong_type(node, text, fmt::format("a section, [{}]", text));
    for (const auto& [key, value] : *table) {
      text == "env"    ? take_variable(key, value)
      : text == "role" ? take_role(key, value)
                       : take_key(text, key, value);
      if (refused_) return;
    }
  }

  /// The place for a key of this name, which may be the option's, or a section's; empty: nowhere.
  static std::string place_of(const std::string& name, const toml::node& value) {
    const auto known = sections();
    if (value.is_table() && std::ranges::count(known, name) != 0) {
      return fmt::format("[{}] is a top-level section, not part of another one", name);
    }
    std::string key = name;
    std::ranges::replace(key, '-', '_');
    for (const auto& section : known) {
      if (std::ranges::count(keys_of(section), key) != 0) {
        return fmt::format("'{}' belongs into the section [{}]", key, section);
      }
    }
    const auto* option = find_option(key);
    if (option == nullptr || option->toml.empty()) return {};
    return fmt::format("the key of {} is {}", spelling(*option), option->toml);
  }

  // The key may be right and only stand outside its section, or in one that --help calls so.
  static std::string section_hint(const std::string& text, const toml::node& node,
                                  const std::vector<std::string>& known) {
    if (auto place = place_of(text, node); !place.empty() && !node.is_table()) return place;
    std::string hint;
    if (const auto* table = node.as_table()) {
      for (const auto& [key, value] : *table) {
        const auto place = place_of(std::string(key.str()), value);
        if (!place.empty()) hint += (hint.empty() ? "" : "\n") + place;
      }
    }
    if (!hint.empty()) return hint;
    if (const auto near = nearest(text, known)) return fmt::format("did you mean [{}]?", *near);
    return fmt::format("the sections are {}", join(known, ", "));
  }

  void take_key(const std::string& section, const toml::key& key, const toml::node& node) {
    const std::string name(key.str()), full = section + "." + name;
    if (full == "job.script") return take_script(node);
    if (full == "job.args") return take_args(node);
    if (full == "metrics.route") return take_routes(node);
    if (const auto* option = find_toml_key(full)) return take_option(*option, node);
    return refuse(key.source(), fmt::format("unknown key '{}' in [{}]", name, section),
                  key_hint(section, name, node));
  }

  static std::string key_hint(const std::string& section, const std::string& name,
                              const toml::node& node) {
    if (auto place = place_of(name, node); !place.empty()) return place;
    const auto keys = keys_of(section);
    if (const auto near = nearest(name, keys)) return fmt::format("did you mean '{}'?", *near);
    return fmt::format("the keys of [{}] are {}", section, join(keys, ", "));
  }

  void take_script(const toml::node& node) {
    const auto* text = node.as_string();
    if (text == nullptr) return wrong_type(node, "job.script", "a text");
    job_.script_source = source(node);
    if (!text->get().empty()) job_.script = text->get();
  }

  void take_args(const toml::node& node) {
    const auto* list = node.as_array();
    if (list == nullptr) {
      return wrong_type(node, "job.args", "a list of texts, for example [\"--epochs\", \"3\"]");
    }
    for (const auto& item : *list) {
      auto text = scalar_text(item);
      if (!text) return wrong_type(item, "an item of job.args", "a text or a number");
      job_.script_args.push_back(std::move(*text));
    }
  }

  void take_routes(const toml::node& node) {
    constexpr std::string_view kExpected = "sections, [[metrics.route]]";
    const auto* list = node.as_array();
    if (list == nullptr) return wrong_type(node, "metrics.route", kExpected);
    for (const auto& item : *list) {
      const auto* table = item.as_table();
      if (table == nullptr) return wrong_type(item, "an item of metrics.route", kExpected);
      take_route(*table);
      if (refused_) return;
    }
  }

  void take_route(const toml::table& table) {
    MetricsRouteRow row{{}, {}, source(table)};
    for (const auto& [key, node] : table) {
      const std::string name(key.str());
      std::string* const place = name == "sink"       ? &row.sink
                                 : name == "name"     ? &row.route.name
                                 : name == "group"    ? &row.route.group
                                 : name == "severity" ? &row.route.severity
                                                      : nullptr;
      if (place == nullptr) {
        return refuse(key.source(), fmt::format("unknown key '{}' in [[metrics.route]]", name),
                      "the keys are sink, name, group, severity");
      }
      const auto* text = node.as_string();
      if (text == nullptr) return wrong_type(node, "metrics.route." + name, "a text");
      *place = text->get();
      if (name == "severity" && !is_severity(*place)) {
        return wrong_type(node, "metrics.route.severity",
                          "one of trace, debug, info, warn, error, fatal");
      }
    }
    if (row.sink.empty()) {
      return refuse(table.source(), "[[metrics.route]] needs a sink",
                    fmt::format("sink = \"...\", one of {}", known_metrics_sinks()));
    }
    job_.metrics_routes.push_back(std::move(row));
  }

  /// [role.NAME]
  void take_role(const toml::key& name, const toml::node& node) {
    const auto section = fmt::format("role.{}", name.str());
    const auto* table = node.as_table();
    if (table == nullptr) return wrong_type(node, section, fmt::format("a section, [{}]", section));
    for (const auto& [key, value] : *table) {
      if (key.str() != "restart") {
        return refuse(key.source(), fmt::format("unknown key '{}' in [{}]", key.str(), section),
                      "the only key is restart");
      }
      const auto* whom = value.as_string();
      if (whom == nullptr || (whom->get() != "own" && whom->get() != "all")) {
        return wrong_type(value, section + ".restart", "\"own\" or \"all\"");
      }
      if (whom->get() == "all") continue;  // as if it did not stand there
      roles_.items.push_back(fmt::format("{}=own", name.str()));
      if (roles_.source.empty()) roles_.source = source(value);
    }
  }

  void take_variable(const toml::key& key, const toml::node& node) {
    const std::string name(key.str());
    // environ(7) has NAME=value: such a name would set another variable than it says.
    if (name.empty() || name.find('=') != std::string::npos ||
        name.find('\0') != std::string::npos) {
      return refuse(key.source(),
                    fmt::format("{} cannot be the name of a variable", in_quotes(name)));
    }
    auto text = scalar_text(node);
    if (!text) return wrong_type(node, "env." + name, "a text or a number");
    job_.worker_env[name] = std::move(*text);
  }

  void take_option(const OptionRow& option, const toml::node& node) {
    Override given{option.id(), {}, Origin::File, source(node)};
    if (option.kind == Kind::Flag) {
      const auto* flag = node.as_boolean();
      if (flag == nullptr) return wrong_type(node, option.toml, "true or false");
      // A PET_ variable has this form, and is_on() reads no other.
      given.text = flag->get() ? "1" : "0";
    } else if (option.kind == Kind::List && !node.is_string() && !node.is_integer()) {
      read_list(option, node, given);
      if (refused_) return;
    } else {
      const auto text = scalar_text(node);
      if (!text || (option.kind == Kind::Int && !node.is_integer()) ||
          // "3" with quotes is mostly a slip; a number for a text ("nproc_per_node = 8") is what
          // people write.
          (option.kind == Kind::Float && node.is_string())) {
        return wrong_type(node, option.toml, expected(option));
      }
      given.text = *text;
      const bool is_number = option.kind == Kind::Int || option.kind == Kind::Float;
      // An option without a default has no text for "unset" in TOML: --print-config writes "" or 0
      // there, and a file made of it must change nothing.
      const bool is_unset = given.text.empty() || (is_number && given.text == "0");
      if (option.fallback.empty() && option.kind != Kind::List && is_unset) return;
      if (check_text(option, given.text)) return wrong_type(node, option.toml, expected(option));
    }
    job_.given.push_back(std::move(given));
  }

  static std::string expected(const OptionRow& option) {
    switch (option.kind) {
      case Kind::Int:
        return "a whole number";
      case Kind::Float:
        return "a number";
      case Kind::Choice:
        return "one of " + join(choices(option), ", ");
      default:
        return "a text or a number";
    }
  }

  // [a, b], and for --rdzv-conf also { a = 1 }.
  void read_list(const OptionRow& option, const toml::node& node, Override& given) {
    // The items count from here on: joined by commas, a text with a comma in it would be two.
    given.listed = true;
    if (const auto* table = node.as_table(); table != nullptr && option.id() == "rdzv-conf"_opt) {
      for (const auto& [key, value] : *table) {
        const std::string full = fmt::format("{}.{}", option.toml, key.str());
        const auto* flag = value.as_boolean();
        const auto text = flag != nullptr ? flag->get() ? "true" : "false" : scalar_text(value);
        if (!text) return wrong_type(value, full, "a text, a number, true or false");
        given.items.push_back(fmt::format("{}={}", key.str(), *text));
      }
    } else if (const auto* list = node.as_array()) {
      for (const auto& item : *list) {
        const auto text = scalar_text(item);
        if (!text)
          return wrong_type(item, fmt::format("an item of {}", option.toml), "a text or a number");
        given.items.push_back(*text);
      }
    } else {
      return wrong_type(node, option.toml,
                        option.id() == "rdzv-conf"_opt ? "a table or a list" : "a list");
    }
    given.text = join(given.items, ",");
  }

  std::string path_;
  std::optional<Refusal> refused_;
  TomlJob job_;
  Override roles_{"role-restart"_opt, {}, Origin::File, {}, {}, true};  // of all [role.NAME]
};

}  // namespace

Answer<TomlJob> parse_toml(std::string_view text, std::string_view path) {
  return Loader(path).load(toml::parse(text, path));
}

}  // namespace elastrun::spec

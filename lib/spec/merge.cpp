// SPDX-License-Identifier: Apache-2.0
#include "spec/merge.hpp"

#include "core/text.hpp"
#include "spec/argument_words.hpp"
#include "spec/option_values.hpp"

#include <algorithm>
#include <fmt/format.h>

namespace elastrun::spec {
namespace {

std::optional<Refusal> check_variable(const OptionRow& option, const std::string& name,
                                      const std::string& text) {
  if (option.kind == Kind::Flag) {
    // torchrun takes int() of it: "true" is an error there as well.
    if (parse_int(text)) return std::nullopt;
    return launcher_refusal(fmt::format("{}: {}", name, python_int_error(text)),
                            "0 turns the flag off, 1 turns it on");
  }
  // torchrun does not check choices here; ours that it has not are checked all the same.
  if (option.kind == Kind::Choice && option.torchrun) return std::nullopt;
  auto refusal = check_text(option, text);
  if (refusal) refusal->hint = fmt::format("the value comes from the variable {}", name);
  return refusal;
}

Override from_variable(Opt id, std::string text, std::string name) {
  return {id, std::move(text), {}, false, Origin::Variable, std::move(name)};
}

}  // namespace

Values::Values() {
  for (const auto& option : options()) {
    values_[static_cast<std::size_t>(option.id)] = {
        option.id, std::string(option.fallback), {}, false, Origin::Default, "default"};
  }
}

bool Values::is_given(Opt id) const {
  const Origin origin = (*this)[id].origin;
  return origin != Origin::Default && origin != Origin::Implied;
}

bool Values::is_on(Opt id) const {
  const auto value = parse_int((*this)[id].text);
  return value && *value != 0;
}

void Values::offer(Override value) {
  auto& present = values_[static_cast<std::size_t>(value.id)];
  // Origins are in the order of their strength, the strongest first; of equal ones the last wins.
  if (value.origin <= present.origin) present = std::move(value);
}

void Values::replace(Override value) {
  values_[static_cast<std::size_t>(value.id)] = std::move(value);
}

void Values::imply(Opt id, std::string text, std::string source) {
  replace({id, std::move(text), {}, false, Origin::Implied, std::move(source)});
}

Answer<std::vector<Override>> read_variables(const HostEnvironment& around, const Values& decided) {
  std::vector<Override> found;
  for (const auto& option : options()) {
    // Not even looked at: a variable that is wrong does no harm where it does not count.
    if (decided[option.id].origin == Origin::CommandLine) continue;
    const std::string name = pet_name(option);
    if (name.empty()) continue;
    if (auto text = around.variable(name)) {
      if (auto refusal = check_variable(option, name, *text)) return std::unexpected(*refusal);
      found.push_back(from_variable(option.id, std::move(*text), name));
      continue;
    }
    const std::string other(option.variable);
    if (other.empty()) continue;
    auto text = around.variable(other);
    if (!text) continue;
    if (option.kind == Kind::Int && !parse_int(*text)) {
      return std::unexpected(launcher_refusal(fmt::format("{}: {}", other, python_int_error(*text)),
                                              "expected a number of seconds"));
    }
    found.push_back(from_variable(option.id, std::move(*text), other));
  }
  return found;
}

std::vector<std::string> unknown_variables(const HostEnvironment& around) {
  const auto set = around.pet_variables();
  if (set.empty()) return {};
  std::vector<std::string> known, warnings;
  for (const auto& option : options()) {
    if (auto name = pet_name(option); !name.empty()) known.push_back(std::move(name));
  }
  for (const auto& name : set) {
    if (std::ranges::find(known, name) != known.end()) continue;
    const auto near = nearest(name, known);
    warnings.push_back(fmt::format("the variable {} sets no option and has no effect{}", name,
                                   near ? fmt::format(" (did you mean {}?)", *near) : ""));
  }
  return warnings;
}

}  // namespace elastrun::spec

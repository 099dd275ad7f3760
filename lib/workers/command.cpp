// SPDX-License-Identifier: Apache-2.0
#include "workers/command.hpp"

#include "workers/run_path.hpp"

namespace elastrun::workers {
namespace {

bool starts_identifier(char c) {
  return c == '_' || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}
bool continues_identifier(char c) {
  return starts_identifier(c) || (c >= '0' && c <= '9');
}

std::string_view identifier_at(std::string_view text, std::size_t at) {
  if (at >= text.size() || !starts_identifier(text[at])) return {};
  std::size_t end = at;
  while (end < text.size() && continues_identifier(text[end])) ++end;
  return text.substr(at, end - at);
}

/// Length of `$local_rank` or `${local_rank}` at `at` (which holds a `$`), 0 if it is neither.
std::size_t placeholder_at(std::string_view text, std::size_t at) {
  constexpr std::string_view kName = "local_rank";
  if (identifier_at(text, at + 1) == kName) return 1 + kName.size();
  if (at + 1 >= text.size() || text[at + 1] != '{') return 0;
  const auto name = identifier_at(text, at + 2);
  const std::size_t close = at + 2 + name.size();
  const bool closed = close < text.size() && text[close] == '}';
  return name == kName && closed ? kName.size() + 3 : 0;
}

}  // namespace

std::string fill_local_rank(std::string_view text, int local_rank) {
  std::string out;
  out.reserve(text.size());
  std::size_t at = 0;
  while (at < text.size()) {
    if (text[at] != '$') {
      out += text[at++];
    } else if (at + 1 < text.size() && text[at + 1] == '$') {
      out += '$';
      at += 2;
    } else if (const auto length = placeholder_at(text, at); length > 0) {
      out += std::to_string(local_rank);
      at += length;
    } else {
      out += text[at++];
    }
  }
  return out;
}

std::vector<std::string> worker_command(const spec::JobSpec& spec, int local_rank) {
  std::vector<std::string> argv;
  argv.reserve(spec.script_args.size() + 4);
  switch (spec.mode) {
    case spec::Mode::Script:
      argv = {spec.interpreter, "-u", fill_local_rank(spec.script, local_rank)};
      break;
    case spec::Mode::Module:
      argv = {spec.interpreter, "-u", "-m", fill_local_rank(spec.script, local_rank)};
      break;
    case spec::Mode::Program:
      argv = {spec.script};
      break;
    case spec::Mode::RunPath:
      argv = {spec.interpreter, "-c", std::string(kRunPathProgram),
              fill_local_rank(spec.script, local_rank)};
      break;
  }
  for (const auto& argument : spec.script_args) {
    argv.push_back(fill_local_rank(argument, local_rank));
  }
  return argv;
}

std::string program_name(const spec::JobSpec& spec) {
  switch (spec.mode) {
    case spec::Mode::Program:
      return spec.script;
    case spec::Mode::RunPath:
      return "run_script_path";
    default:
      return spec.interpreter;
  }
}

std::string program_base_name(const spec::JobSpec& spec) {
  const auto program = program_name(spec);
  return program.substr(program.rfind('/') + 1);
}

std::string entry_name(const spec::JobSpec& spec) {
  if (spec.mode == spec::Mode::RunPath) return "run_script_path";
  if (spec.mode == spec::Mode::Program) return spec.script;
  return spec.interpreter_given ? spec.interpreter : spec.script;
}

}  // namespace elastrun::workers

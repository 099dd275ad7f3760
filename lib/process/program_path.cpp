// SPDX-License-Identifier: Apache-2.0

#include "process/program_path.hpp"

#include "core/file_io.hpp"
#include "core/text.hpp"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <fmt/format.h>
#include <optional>
#include <string_view>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>
#include <utility>

namespace elastrun::process {

std::vector<std::string> shell_line(std::string line) {
  return {"/bin/sh", "-c", std::move(line)};
}

std::vector<std::string> shell_exec(const std::vector<std::string>& words) {
  // The words are parameters and no part of the line, so nothing in them is read as shell syntax.
  // By exec, so that signals reach the program, and its end is that of the child.
  auto argv = shell_line(R"(exec "$0" "$@")");
  argv.insert(argv.end(), words.begin(), words.end());
  return argv;
}

LaunchRequest fed_program(std::vector<std::string> argv, std::vector<std::string> environment,
                          int input) {
  LaunchRequest request;
  request.argv = std::move(argv);
  request.environment = std::move(environment);
  request.stdin_fd = input;
  // What it prints must not come among the workers' output, which others read from our stdout.
  request.stdout_fd = request.stderr_fd = STDERR_FILENO;
  return request;
}

namespace {

std::optional<std::string_view> search_path(const std::vector<std::string>& environment) {
  constexpr std::string_view kName = "PATH=";
  for (const std::string_view variable : environment) {
    if (variable.starts_with(kName)) return variable.substr(kName.size());
  }
  return std::nullopt;
}

std::string in_directory(const std::string& directory, const std::string& path) {
  return directory.empty() || path.starts_with('/') ? path : directory + "/" + path;
}

// 0, or the errno that execve(2) would give for a file that is missing or may not be executed.
int refusal(const std::string& path) {
  struct stat facts {};
  if (::stat(path.c_str(), &facts) != 0) return errno;
  if (!S_ISREG(facts.st_mode)) return EACCES;
  // By the effective user, as execve(2) judges; access(2) takes the real one.
  return ::faccessat(AT_FDCWD, path.c_str(), X_OK, AT_EACCESS) == 0 ? 0 : errno;
}

// The interpreter of a script's first line, or nothing.
std::string interpreter_of(const std::string& path) {
  // As much as the kernel looks at (BINPRM_BUF_SIZE).
  const auto start = read_file(path, 256).value_or("");
  std::string_view line = start;
  if (!line.starts_with("#!")) return {};
  line = line.substr(2, line.find('\n') - 2);
  line.remove_prefix(std::min(line.find_first_not_of(" \t"), line.size()));
  return std::string(line.substr(0, line.find_first_of(" \t")));
}

std::string explain_size(const std::vector<std::string>& argv,
                         const std::vector<std::string>& environment) {
  const auto total = [](const std::vector<std::string>& texts) {
    std::size_t bytes = 0;
    // The kernel counts the pointers, too (bprm_stack_limits() in fs/exec.c).
    for (const std::string& text : texts) bytes += text.size() + 1 + sizeof(char*);
    return bytes;
  };
  const auto longest = std::max_element(
      environment.begin(), environment.end(),
      [](const std::string& a, const std::string& b) { return a.size() < b.size(); });
  std::string advice = fmt::format(
      "Argument list too long (the arguments take {}, the environment {}; the limit is about {} "
      "in all and 128 KiB for one text",
      format_bytes(total(argv)), format_bytes(total(environment)),
      format_bytes(static_cast<std::uint64_t>(::sysconf(_SC_ARG_MAX))));
  if (longest != environment.end()) {
    advice += fmt::format("; the largest variable is {} with {}; unset or shorten it",
                          longest->substr(0, longest->find('=')), format_bytes(longest->size()));
  }
  return advice + ")";
}

}  // namespace

Result<std::string> find_program(const std::string& name,
                                 const std::vector<std::string>& environment,
                                 const std::string& directory) {
  if (name.empty()) return fail(Code::Spawn, "cannot start an empty program name");
  if (name.find('/') != std::string::npos) return name;  // execve itself gives the best errors
  bool forbidden = false;
  for (const std::string& path : program_candidates(name, search_path(environment))) {
    const int number = refusal(in_directory(directory, path));
    if (number == 0) return path;
    forbidden = forbidden || number == EACCES;
  }
  if (forbidden) {
    return fail(Code::Spawn, fmt::format("cannot start {}: Permission denied (a file of this name "
                                         "in PATH is not executable; try chmod +x)",
                                         name));
  }
  return fail(Code::Spawn, fmt::format("cannot start {}: No such file or directory (it is in no "
                                       "directory of PATH)",
                                       name));
}

std::string explain_exec_failure(int number, const std::string& path,
                                 const std::vector<std::string>& argv,
                                 const std::vector<std::string>& environment,
                                 const std::string& directory) {
  const std::string file = in_directory(directory, path);
  if (number == E2BIG) return explain_size(argv, environment);
  // The file is there: what is missing is the one that the kernel starts in its place.
  if (number == ENOENT && refusal(file) == 0) {
    const std::string interpreter = interpreter_of(file);
    if (interpreter.ends_with('\r')) {
      return fmt::format(
          "No such file or directory (its first line ends in CR LF, as Windows writes it, so the "
          "kernel looks for '{}\\r'; convert the file: sed -i 's/\\r$//' {})",
          interpreter.substr(0, interpreter.size() - 1), file);
    }
    if (!interpreter.empty()) {
      return fmt::format("No such file or directory (its first line asks for {}, which is missing)",
                         interpreter);
    }
    return "No such file or directory (the loader that the program was linked for is missing)";
  }
  if (number == EACCES && refusal(file) == EACCES) {
    return "Permission denied (not an executable file; try chmod +x)";
  }
  if (number == ENOEXEC) {
    return "Exec format error (neither a program for this machine nor a script that starts "
           "with #!)";
  }
  return std::strerror(number);
}

}  // namespace elastrun::process

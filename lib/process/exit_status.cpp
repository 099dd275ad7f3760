// SPDX-License-Identifier: Apache-2.0
#include "process/exit_status.hpp"

#include <fmt/format.h>
#include <sys/wait.h>

namespace elastrun::process {

ExitStatus ExitStatus::from_wait(int raw) {
  if (WIFSIGNALED(raw)) {
    return {How::Signaled, WTERMSIG(raw), WCOREDUMP(raw) != 0};
  }
  return exited(WEXITSTATUS(raw));
}

std::string ExitStatus::text() const {
  if (how == How::Exited) return fmt::format("exit code {}", number);
  const std::string name = signal_name(number);
  return fmt::format("{}{}", name.empty() ? fmt::format("signal {}", number) : name,
                     core_dumped ? " (core dumped)" : "");
}

std::string torchrun_signal_name(int signal) {
  const std::string name = signal_name(signal);
  return name.empty() || name.starts_with("SIGRTMIN+") ? "<N/A>" : name;
}

}  // namespace elastrun::process

// SPDX-License-Identifier: Apache-2.0
#include "process/exit_status.hpp"

#include <array>
#include <charconv>
#include <fmt/format.h>
#include <signal.h>
#include <string_view>
#include <sys/wait.h>

namespace elastrun::process {
namespace {

struct Name {
  int number;
  std::string_view text;
};

// Of several names of one number the first is the one that is printed, as in Python's
// signal.Signals.
constexpr std::array kNames{
    Name{SIGHUP, "SIGHUP"},       Name{SIGINT, "SIGINT"},       Name{SIGQUIT, "SIGQUIT"},
    Name{SIGILL, "SIGILL"},       Name{SIGTRAP, "SIGTRAP"},     Name{SIGABRT, "SIGABRT"},
    Name{SIGBUS, "SIGBUS"},       Name{SIGFPE, "SIGFPE"},       Name{SIGKILL, "SIGKILL"},
    Name{SIGUSR1, "SIGUSR1"},     Name{SIGSEGV, "SIGSEGV"},     Name{SIGUSR2, "SIGUSR2"},
    Name{SIGPIPE, "SIGPIPE"},     Name{SIGALRM, "SIGALRM"},     Name{SIGTERM, "SIGTERM"},
    Name{SIGSTKFLT, "SIGSTKFLT"}, Name{SIGCHLD, "SIGCHLD"},     Name{SIGCONT, "SIGCONT"},
    Name{SIGSTOP, "SIGSTOP"},     Name{SIGTSTP, "SIGTSTP"},     Name{SIGTTIN, "SIGTTIN"},
    Name{SIGTTOU, "SIGTTOU"},     Name{SIGURG, "SIGURG"},       Name{SIGXCPU, "SIGXCPU"},
    Name{SIGXFSZ, "SIGXFSZ"},     Name{SIGVTALRM, "SIGVTALRM"}, Name{SIGPROF, "SIGPROF"},
    Name{SIGWINCH, "SIGWINCH"},   Name{SIGIO, "SIGIO"},         Name{SIGPWR, "SIGPWR"},
    Name{SIGSYS, "SIGSYS"},       Name{SIGABRT, "SIGIOT"},      Name{SIGCHLD, "SIGCLD"},
    Name{SIGIO, "SIGPOLL"},
};

std::string real_time_name(int signal) {
  if (signal == SIGRTMIN) return "SIGRTMIN";
  if (signal == SIGRTMAX) return "SIGRTMAX";
  return fmt::format("SIGRTMIN+{}", signal - SIGRTMIN);
}

// "+3" counted up from SIGRTMIN or "-3" down from SIGRTMAX; 0 if it leads out of the range.
int real_time_number(std::string_view offset, int base) {
  if (offset.empty()) return base;
  if (offset.front() != (base == SIGRTMIN ? '+' : '-')) return 0;
  int distance = 0;
  const auto* const end = offset.data() + offset.size();
  const auto [stop, error] = std::from_chars(offset.data() + 1, end, distance);
  if (error != std::errc{} || stop != end || distance < 0 || distance > SIGRTMAX) return 0;
  const int signal = base == SIGRTMIN ? base + distance : base - distance;
  return signal >= SIGRTMIN && signal <= SIGRTMAX ? signal : 0;
}

}  // namespace

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

std::string signal_name(int signal) {
  for (const Name& name : kNames) {
    if (name.number == signal) return std::string(name.text);
  }
  if (signal >= SIGRTMIN && signal <= SIGRTMAX) return real_time_name(signal);
  return {};
}

std::string torchrun_signal_name(int signal) {
  const std::string name = signal_name(signal);
  return name.empty() || name.starts_with("SIGRTMIN+") ? "<N/A>" : name;
}

int signal_number(const std::string& name) {
  for (const Name& known : kNames) {
    if (known.text == name) return known.number;
  }
  constexpr std::string_view kFirst = "SIGRTMIN", kLast = "SIGRTMAX";
  const std::string_view text = name;
  if (text.starts_with(kFirst)) return real_time_number(text.substr(kFirst.size()), SIGRTMIN);
  if (text.starts_with(kLast)) return real_time_number(text.substr(kLast.size()), SIGRTMAX);
  return 0;
}

}  // namespace elastrun::process

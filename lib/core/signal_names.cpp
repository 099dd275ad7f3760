// SPDX-License-Identifier: Apache-2.0
#include "core/signal_names.hpp"

#include <array>
#include <charconv>
#include <fmt/format.h>
#include <signal.h>

namespace elastrun {
namespace {

constexpr std::array kNames{
    SignalName{SIGHUP, "SIGHUP"},   SignalName{SIGINT, "SIGINT"},
    SignalName{SIGQUIT, "SIGQUIT"}, SignalName{SIGILL, "SIGILL"},
    SignalName{SIGTRAP, "SIGTRAP"}, SignalName{SIGABRT, "SIGABRT"},
    SignalName{SIGBUS, "SIGBUS"},   SignalName{SIGFPE, "SIGFPE"},
    SignalName{SIGKILL, "SIGKILL"}, SignalName{SIGUSR1, "SIGUSR1"},
    SignalName{SIGSEGV, "SIGSEGV"}, SignalName{SIGUSR2, "SIGUSR2"},
    SignalName{SIGPIPE, "SIGPIPE"}, SignalName{SIGALRM, "SIGALRM"},
    SignalName{SIGTERM, "SIGTERM"}, SignalName{SIGSTKFLT, "SIGSTKFLT"},
    SignalName{SIGCHLD, "SIGCHLD"}, SignalName{SIGCONT, "SIGCONT"},
    SignalName{SIGSTOP, "SIGSTOP"}, SignalName{SIGTSTP, "SIGTSTP"},
    SignalName{SIGTTIN, "SIGTTIN"}, SignalName{SIGTTOU, "SIGTTOU"},
    SignalName{SIGURG, "SIGURG"},   SignalName{SIGXCPU, "SIGXCPU"},
    SignalName{SIGXFSZ, "SIGXFSZ"}, SignalName{SIGVTALRM, "SIGVTALRM"},
    SignalName{SIGPROF, "SIGPROF"}, SignalName{SIGWINCH, "SIGWINCH"},
    SignalName{SIGIO, "SIGIO"},     SignalName{SIGPWR, "SIGPWR"},
    SignalName{SIGSYS, "SIGSYS"},   SignalName{SIGABRT, "SIGIOT"},
    SignalName{SIGCHLD, "SIGCLD"},  SignalName{SIGIO, "SIGPOLL"},
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

std::string signal_name(int signal) {
  for (const SignalName& name : kNames) {
    if (name.number == signal) return std::string(name.text);
  }
  if (signal >= SIGRTMIN && signal <= SIGRTMAX) return real_time_name(signal);
  return {};
}

int signal_number(std::string_view name) {
  for (const SignalName& known : kNames) {
    if (known.text == name) return known.number;
  }
  constexpr std::string_view kFirst = "SIGRTMIN", kLast = "SIGRTMAX";
  if (name.starts_with(kFirst)) return real_time_number(name.substr(kFirst.size()), SIGRTMIN);
  if (name.starts_with(kLast)) return real_time_number(name.substr(kLast.size()), SIGRTMAX);
  return 0;
}

std::span<const SignalName> signal_names() {
  return kNames;
}

}  // namespace elastrun

// SPDX-License-Identifier: Apache-2.0
#include "agent/goodput/alert_command.hpp"

#include "core/log.hpp"
#include "core/text.hpp"
#include "core/unique_fd.hpp"
#include "process/shell.hpp"

#include <cerrno>
#include <csignal>
#include <cstring>
#include <fcntl.h>
#include <unistd.h>
#include <utility>

namespace elastrun::agent {
namespace {

constexpr std::string_view kAlertArea = "goodput";

}  // namespace

AlertCommand::AlertCommand(Clock& clock, process::Launcher& launcher, std::vector<std::string> argv,
                           std::vector<std::string> environment)
    : clock_(clock),
      launcher_(launcher),
      argv_(std::move(argv)),
      environment_(std::move(environment)),
      limit_(clock.make_alarm()),
      after_(clock.make_alarm()) {}

void AlertCommand::run(std::string input) {
  if (child_) {
    // Only the newest one waits: those before it are out of date by then.
    next_ = std::move(input);
  } else {
    start(input);
  }
}

void AlertCommand::start(const std::string& input) {
  if (const auto launched = launch(input); !launched) {
    return log::warning(kAlertArea, "alert_command: cannot start {}: {}", argv_.front(),
                        launched.error().text);
  }
  limit_->arm(clock_.now() + kTimeLimit, [this] { kill(); });
}

/// All of its input is in the pipe before it starts, so that the agent never waits for it to read.
Status AlertCommand::launch(const std::string& input) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) return fail(Code::Io, std::strerror(errno));
  const UniqueFd theirs(ends[0]);
  UniqueFd ours(ends[1]);
  // Of our end alone, which has its flags for itself: a shell's read would fail with EAGAIN at the
  // other one. An empty pipe takes 64 KiB (pipe(7)).
  if (::fcntl(ours.get(), F_SETFL, O_NONBLOCK) != 0 ||
      ::write(ours.get(), input.data(), input.size()) != static_cast<ssize_t>(input.size())) {
    return fail(Code::Io, std::strerror(errno));
  }
  ours.reset();
  auto child =
      launcher_.start(process::fed_program(process::shell_exec(argv_), environment_, theirs.get()),
                      [this](const process::Exit& exit) { ended(exit); });
  if (!child) return std::unexpected(child.error());
  child_ = std::move(*child);
  return {};
}

void AlertCommand::ended(const process::Exit& exit) {
  limit_->disarm();
  if (!exit.status.success()) {
    log::warning(kAlertArea, "alert_command: {} has ended ({})", argv_.front(), exit.status.text());
  }
  // Not inside the child's own call. What is left of its group goes with it.
  after_->arm(clock_.now(), [this] {
    child_.reset();
    if (next_) start(*std::exchange(next_, std::nullopt));
  });
}

void AlertCommand::kill() {
  log::warning(kAlertArea, "alert_command: {} is killed, it runs for more than {}", argv_.front(),
               format_duration(kTimeLimit));
  child_->signal_group(SIGKILL);
}

}  // namespace elastrun::agent

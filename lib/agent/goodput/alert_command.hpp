// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/clock.hpp"
#include "core/error.hpp"
#include "process/launcher.hpp"

#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace elastrun::agent {

/// Runs the user's program for each alert, one at a time, with the alert on its standard input.
/// What comes while one runs waits, and only the latest. It is killed with its group after
/// kTimeLimit, or when this goes. Waits for nothing; what fails is a line of the log.
class AlertCommand {
 public:
  static constexpr Duration kTimeLimit = std::chrono::seconds(30);
  /// What a pipe takes at once, whatever the limits of the user (pipe(7)).
  static constexpr std::size_t kMostInput = 4096;

  /// Borrows clock and launcher. The program's output goes to stderr. `argv` is not empty.
  AlertCommand(Clock& clock, process::Launcher& launcher, std::vector<std::string> argv,
               std::vector<std::string> environment);
  AlertCommand(const AlertCommand&) = delete;
  AlertCommand& operator=(const AlertCommand&) = delete;

  /// `input`: kMostInput bytes at most.
  void run(std::string input);

 private:
  void start(const std::string& input);
  Status launch(const std::string& input);
  void ended(const process::Exit& exit);
  void kill();

  Clock& clock_;
  process::Launcher& launcher_;
  const std::vector<std::string> argv_, environment_;
  const std::unique_ptr<Alarm> limit_, after_;
  std::unique_ptr<process::Child> child_;
  std::optional<std::string> next_;
};

}  // namespace elastrun::agent

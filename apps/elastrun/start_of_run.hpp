// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "agent/loop/job_result.hpp"
#include "core/error.hpp"
#include "spec/job_spec.hpp"
#include "spec/sources.hpp"

#include <optional>
#include <string>
#include <string_view>

namespace elastrun {

/// Last part of argv[0], for usage and error lines.
std::string program_name(int argc, char** argv);
/// From LOGLEVEL, as torchrun reads it; refuses an unknown level.
std::optional<spec::Refusal> set_log_level();

// Each gives the exit code.

/// Writes to stdout, and says where it cannot.
int print(std::string_view text);
/// Says on stderr why the job cannot be run.
int refuse(const spec::Refusal& refusal, const std::string& program);
/// Help, version, completion script or default file.
int answer(const spec::CommandLine& line, const std::string& program);
int print_plan(const spec::JobSpec& spec, const std::string& program);
/// For a job that could not begin.
int give_up(const agent::StartFailure& failure, const std::string& program);

/// Says the same of a job that runs all the same, to tell the other nodes.
void say_refusal(const spec::Refusal& refusal, const std::string& program);
/// Notes and warnings about the options, also of a dry run.
void say_warnings(const spec::Resolved& job);
/// Says what a run does by itself or may stumble over, before it starts.
void say_start(const spec::Resolved& job);

/// `program`, what is installed with it (elastrunctl, the Python package), and a link `torchrun` as
/// DIR/bin and DIR/share: a prefix that another container finds in PATH. Each file appears whole,
/// and over an older one also while that runs. Fails with Io.
Status install_into(const std::string& folder, const std::string& program);

}  // namespace elastrun

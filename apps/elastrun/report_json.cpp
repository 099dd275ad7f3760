// SPDX-License-Identifier: Apache-2.0
#include "report_json.hpp"

#include "agent/verdict/verdict.hpp"
#include "core/host.hpp"
#include "core/json.hpp"
#include "core/text.hpp"
#include "files/whole_file.hpp"
#include "goodput/reports/summary.hpp"
#include "hangs/stacks.hpp"
#include "rendezvous/membership/restart_rule.hpp"
#include "rendezvous/wire/messages.hpp"
#include "workers/environment.hpp"

#include <cerrno>
#include <cstring>
#include <fmt/format.h>
#include <sys/stat.h>
#include <sys/utsname.h>
#include <unistd.h>

#ifndef ELASTRUN_VERSION  // CMake gives the project's
#define ELASTRUN_VERSION "of an unknown version"
#endif

namespace elastrun {
namespace {

json::value signal_or_null(const process::ExitStatus& status) {
  if (status.how != process::ExitStatus::How::Signaled) return nullptr;
  return json::value(process::signal_name(status.number));
}

/// Of a step or checkpoint, which are below 0 if not known.
json::value step_or_null(std::int64_t step) {
  return step >= 0 ? json::value(step) : nullptr;
}

/// Writes what the worker last wrote into its page: null without one.
json::value page_json(const workers::Failure& failure) {
  if (!failure.page) return nullptr;
  const auto& page = *failure.page;
  json::object values;
  for (const auto& series : page.series) {
    // JSON has no NaN and no infinity (RFC 8259, 6); a strict reader would refuse the whole report.
    values[fmt::format("{}/{}", series.group, series.name)] =
        std::isfinite(series.value) ? json::value(series.value) : nullptr;
  }
  const auto age = std::max(to_seconds(failure.at - page.step_at), 0.0);
  return {{"step", or_null(page.step)},
          {"step_age_s", page.step ? json::value(age) : nullptr},
          {"phase", text_or_null(page.phase)},
          {"values", std::move(values)}};
}

json::object failure_json(const workers::Failure& failure, bool consequence) {
  return {{"rank", failure.rank},
          {"local_rank", failure.local_rank},
          {"pid", failure.pid},
          {"time", to_seconds(agent::time_of(failure))},
          {"ended", to_seconds(failure.wall)},
          {"exit_code", failure.status.as_python()},
          {"signal", signal_or_null(failure.status)},
          {"core_dumped", failure.status.core_dumped},
          {"what", workers::what_happened(failure)},
          {"stopped_by_us", failure.stopped_by_us},
          {"consequence", consequence},
          {"exception", failure.exception ? json::value(failure.exception->text()) : nullptr},
          {"out_of_memory", text_or_null(failure.out_of_memory)},
          {"expired_timer", text_or_null(failure.expired_timer)},
          {"stack", json::array(failure.stack.begin(), failure.stack.end())},
          {"error_file", failure.error_file ? json::value(failure.error_file_path) : nullptr},
          {"stdout", text_or_null(failure.stdout_path)},
          {"stderr", text_or_null(failure.stderr_path)},
          {"peak_rss_bytes", failure.peak_rss_bytes},
          {"last_lines", json::array(failure.last_lines.begin(), failure.last_lines.end())},
          {"last", page_json(failure)}};
}

json::array failures_json(const agent::JobResult& result) {
  json::array out;
  if (!result.judgement) return out;
  const auto& judgement = *result.judgement;
  for (std::size_t i = 0; i < judgement.failures.size(); ++i) {
    out.emplace_back(failure_json(judgement.failures[i], judgement.consequence[i]));
  }
  return out;
}

json::value cause_json(const rendezvous::Cause& cause) {
  json::object out{
      {"node", text_or_null(cause.node)}, {"text", cause.text}, {"time", cause.wall_seconds}};
  if (const auto what = rendezvous::class_of(cause)) {
    out["class"] = spec::cause_class_name(*what);
  }
  if (!cause.rule.empty()) out["rule"] = cause.rule;
  if (cause.kind != rendezvous::Cause::Kind::WorkerFailed) return out;
  out["fingerprint"] = text_or_null(cause.fingerprint);
  out["step"] = step_or_null(cause.step);
  out["checkpoint"] = step_or_null(cause.checkpoint);
  out["rank"] = cause.rank;
  out["local_rank"] = cause.local_rank;
  out["exit_code"] = cause.exit_code;
  return out;
}

json::value culprit_json(const agent::JobResult& result) {
  return result.culprit ? cause_json(result.culprit->cause) : nullptr;
}

json::array expired_timers_json(const agent::JobResult& result, std::size_t attempt) {
  json::array out;
  for (const auto& timer : result.expired_timers) {
    if (static_cast<std::size_t>(timer.attempt) != attempt) continue;
    out.push_back(
        {{"rank", timer.rank},
         {"local_rank", timer.local_rank},
         {"pid", timer.pid},
         {"scope", timer.scope},
         {"after_s", to_seconds(timer.after)},
         {"expired", to_seconds(timer.expiry)},
         {"signal", timer.reaped ? json::value(process::signal_name(timer.signal)) : nullptr},
         {"stack", json::array(timer.stack.begin(), timer.stack.end())}});
  }
  return out;
}

/// The restart waterfall: each row begins where the one before it was given up.
json::array attempts_json(const agent::JobResult& result) {
  json::array out;
  for (const auto& attempt : result.attempts) {
    const bool last = &attempt == &result.attempts.back();
    const auto index = static_cast<std::size_t>(&attempt - result.attempts.data());
    // The last one was ended by what ended the job.
    auto cause = attempt.cause ? cause_json(*attempt.cause)
                 : last        ? culprit_json(result)
                               : json::value(nullptr);
    out.push_back({{"round", attempt.round},
                   {"attempt", attempt.number},
                   {"waited_s", to_seconds(attempt.waited)},
                   {"started", to_seconds(attempt.started)},
                   {"ran_s", to_seconds(attempt.ran)},
                   {"stopping_s", to_seconds(attempt.stopping)},
                   {"ended", to_seconds(attempt.started + (attempt.ran + attempt.stopping))},
                   {"cause", std::move(cause)},
                   {"restarted", !last},
                   {"delay_s", to_seconds(attempt.delay)},
                   {"expired_timers", expired_timers_json(result, index)}});
  }
  return out;
}

/// Writes the restarts of other roles, through which this node went on.
json::array role_restarts_json(const agent::JobResult& result) {
  json::array rows;
  for (const auto& one : result.role_restarts) {
    rows.push_back({{"role", one.role},
                    {"time", to_seconds(one.at)},
                    {"node", one.cause.node},
                    {"cause", one.cause.text}});
  }
  return rows;
}

json::value preemption_json(const agent::JobResult& result) {
  if (!result.preemption) return nullptr;
  const auto& preemption = *result.preemption;
  return {{"why", preemption.why},
          {"asked", to_seconds(preemption.asked)},
          {"saved", preemption.is_saved ? json::value(to_seconds(preemption.saved)) : nullptr},
          {"saved_step", step_or_null(preemption.checkpoint)},
          {"last_step", step_or_null(preemption.step)},
          {"lost_steps", or_null(preemption.lost())},
          {"last_checkpoint", step_or_null(preemption.holds)},
          {"failure", text_or_null(preemption.failure)}};
}

json::array hangs_json(const agent::JobResult& result) {
  json::array all;
  for (const auto& hang : result.hangs) {
    auto one = hangs::stacks_json(hang.stacks);
    one["verdict"] = hangs::hang_text(hang.stacks);
    one["attempt"] = hang.attempt;
    one["time"] = to_seconds(hang.at);
    one["standing_s"] = to_seconds(hang.standing);
    all.emplace_back(std::move(one));
  }
  return all;
}

json::array workers_json(const agent::JobResult& result) {
  json::array out;
  for (const auto& worker : result.workers) {
    const auto& exit = worker.exit;  // none: the process hangs in the kernel
    out.push_back({{"rank", worker.rank},
                   {"local_rank", worker.local_rank},
                   {"pid", worker.pid},
                   {"stopped_by_us", worker.stopped_by_us},
                   {"exit_code", exit ? json::value(exit->status.as_python()) : nullptr},
                   {"signal", exit ? signal_or_null(exit->status) : nullptr},
                   {"ended", exit ? json::value(to_seconds(exit->wall)) : nullptr},
                   {"peak_rss_bytes", exit ? json::value(exit->peak_rss_bytes) : nullptr}});
  }
  return out;
}

json::array sinks_json(const std::vector<exporter::SinkAccount>& sinks) {
  json::array out;
  for (const auto& sink : sinks) {
    // As the user has typed it, which may be no UTF-8.
    out.push_back({{"sink", valid_utf8(sink.sink)},
                   {"delivered", sink.delivered},
                   {"lost", sink.lost},
                   {"trouble", text_or_null(valid_utf8(sink.trouble))}});
  }
  return out;
}

std::vector<goodput::Hint> hints_of(const agent::JobResult& result, const spec::JobSpec& spec) {
  if (spec.goodput == spec::Goodput::Off) return {};
  return goodput::hints(result.goodput, result.restart_paths);
}

json::object versions_json() {
  json::object out{{"elastrun", ELASTRUN_VERSION}};
  utsname system{};
  if (::uname(&system) != 0) return out;
  out["system"] = system.sysname;
  out["kernel"] = system.release;
  out["machine"] = system.machine;
  return out;
}

}  // namespace

std::string report_json(const agent::JobResult& result, const spec::JobSpec& spec, int exit_code,
                        const std::vector<exporter::SinkAccount>& sinks) {
  json::object out{
      {"format", 1},
      {"versions", versions_json()},
      {"run_id", spec.run_id},
      {"name", spec.name},
      {"entry_point", workers::entry_name(spec)},
      {"host", host_name()},
      {"ending", agent::ending_name(result.ending.kind)},
      {"succeeded", result.succeeded()},
      {"exit_code", exit_code},
      {"verdict", agent::verdict_sentence(result)},
      {"requeue", result.ending.requeue},
      {"requeue_command", text_or_null(result.ending.requeue ? spec.requeue_command : "")},
      {"started", to_seconds(result.started)},
      {"finished", to_seconds(result.finished)},
      {"restarts", result.restarts},
      {"restarts_left", result.restarts_left},
      {"max_restarts", spec.max_restarts},
      {"local_world_size", result.local_world_size}};
  if (result.round) {
    out["group_rank"] = result.round->group_rank;
    out["group_world_size"] = result.round->group_world_size();
    out["world_size"] = result.round->world_size;
  }
  out["culprit"] = culprit_json(result);
  out["failures"] = failures_json(result);
  out["attempts"] = attempts_json(result);
  out["role_restarts"] = role_restarts_json(result);
  // The ledger of the restart policy; null with torchrun's.
  out["restart_ledger"] = result.memory ? json::value(to_json(*result.memory)) : nullptr;
  out["preemption"] = preemption_json(result);
  out["hangs"] = hangs_json(result);
  out["workers"] = workers_json(result);
  out["goodput"] = nullptr;
  if (spec.goodput != spec::Goodput::Off) out["goodput"] = goodput::summary_json(result.goodput);
  out["hints"] = goodput::hints_json(hints_of(result, spec));
  out["restart_waterfall"] = goodput::restarts_json(result.restart_paths);
  out["goodput_attempts"] = goodput::starts_json(result.starts);
  if (!sinks.empty()) out["metrics_sinks"] = sinks_json(sinks);
  out["run_directory"] = text_or_null(result.run_dir);
  return python_json(out) + "\n";
}

std::string report_path(const agent::JobResult& result, const spec::JobSpec& spec) {
  const auto& path = spec.report_file;
  if (spec.max_nodes <= 1) return path;
  // Without a round the node has no rank: its name keeps nodes of one shared folder apart.
  if (!result.round) return files::with_word(path, host_name());
  // One node has the name that was asked for, so that what reads the report finds it.
  if (result.round->group_rank == 0) return path;
  return files::with_word(path, fmt::format("node{}", result.round->group_rank));
}

std::string trouble_with_report(const std::string& path) {
  const auto slash = path.rfind('/');
  const std::string folder = slash == std::string::npos ? "." : path.substr(0, slash + 1);
  struct stat info {};
  if (::stat(path.c_str(), &info) == 0 && S_ISDIR(info.st_mode)) {
    return fmt::format("--report {} is a directory; give the name of a file in it", path);
  }
  if (files::is_written_to(path)) {
    if (::access(path.c_str(), W_OK) == 0) return {};
    return fmt::format("--report {}: it cannot be written to ({}); there will be no report", path,
                       std::strerror(errno));
  }
  if (::stat(folder.c_str(), &info) != 0 && errno == ENOENT) {
    return fmt::format(
        "--report {}: the directory {} does not exist; make it before the job ends, or there will "
        "be no "
        "report",
        path, folder);
  }
  if (::access(folder.c_str(), W_OK | X_OK) == 0) return {};
  const int why = errno;
  if (::access(path.c_str(), W_OK) == 0) return {};  // it will be written in place
  return fmt::format("--report {}: no file can be made in {} ({}); there will be no report", path,
                     folder, std::strerror(why));
}

}  // namespace elastrun

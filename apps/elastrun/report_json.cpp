// SPDX-License-Identifier: Apache-2.0
#include "report_json.hpp"

#include "agent/failure_report.hpp"
#include "agent/verdict.hpp"
#include "core/json.hpp"
#include "core/text.hpp"
#include "core/unique_fd.hpp"
#include "workers/command.hpp"

#include <cerrno>
#include <fcntl.h>
#include <unistd.h>

namespace elastrun {
namespace {

json::value text_or_null(const std::string& text) {
  return text.empty() ? json::value(nullptr) : json::value(text);
}

json::object failure_json(const workers::Failure& failure, bool consequence) {
  json::object out;
  out["rank"] = failure.rank;
  out["local_rank"] = failure.local_rank;
  out["pid"] = failure.pid;
  out["time"] = to_seconds(agent::time_of(failure));
  out["ended"] = to_seconds(failure.wall);
  out["exit_code"] = failure.status.as_python();
  const bool signaled = failure.status.how == process::ExitStatus::How::Signaled;
  out["signal"] =
      signaled ? json::value(process::signal_name(failure.status.number)) : json::value(nullptr);
  out["core_dumped"] = failure.status.core_dumped;
  out["what"] = workers::what_happened(failure);
  out["stopped_by_us"] = failure.stopped_by_us;
  out["consequence"] = consequence;
  out["exception"] =
      failure.exception ? json::value(failure.exception->text()) : json::value(nullptr);
  out["out_of_memory"] = text_or_null(failure.out_of_memory);
  out["error_file"] = failure.error_file ? json::value(failure.error_file_path) : nullptr;
  out["stdout"] = text_or_null(failure.stdout_path);
  out["stderr"] = text_or_null(failure.stderr_path);
  out["peak_rss_bytes"] = failure.peak_rss_bytes;
  json::array lines;
  for (const auto& line : failure.last_lines) lines.emplace_back(line);
  out["last_lines"] = std::move(lines);
  return out;
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

json::value culprit_json(const agent::JobResult& result) {
  if (result.succeeded()) return nullptr;
  json::object out;
  const auto& cause = result.ending.cause;
  if (!cause.node.empty()) {
    out["node"] = cause.node;
    out["rank"] = cause.rank;
    out["local_rank"] = cause.local_rank;
    out["exit_code"] = cause.exit_code;
    out["text"] = cause.text;
    out["time"] = cause.wall_seconds;
    return out;
  }
  if (!result.judgement) return nullptr;
  const auto& first = result.judgement->first();
  out["node"] = agent::host_name();
  out["rank"] = first.rank;
  out["local_rank"] = first.local_rank;
  out["exit_code"] = first.status.as_python();
  out["text"] = workers::what_happened(first);
  out["time"] = to_seconds(first.wall);
  return out;
}

json::array attempts_json(const agent::JobResult& result) {
  json::array out;
  for (const auto& attempt : result.attempts) {
    out.push_back({{"round", attempt.round},
                   {"attempt", attempt.number},
                   {"started", to_seconds(attempt.started)},
                   {"seconds", to_seconds(attempt.ran)},
                   {"why_ended", text_or_null(attempt.why_ended)}});
  }
  return out;
}

json::object goodput_json(const goodput::Ledger::Summary& summary) {
  json::object buckets;
  for (std::size_t i = 0; i < goodput::kBuckets; ++i) {
    const auto bucket = static_cast<goodput::Bucket>(i);
    buckets[goodput::bucket_name(bucket)] = to_seconds(summary.of(bucket));
  }
  json::object out;
  out["goodput"] = summary.goodput();
  out["seconds"] = to_seconds(summary.elapsed);
  out["buckets"] = std::move(buckets);
  out["last_step"] = summary.last_step ? json::value(*summary.last_step) : nullptr;
  out["last_checkpoint"] =
      summary.last_checkpoint ? json::value(*summary.last_checkpoint) : nullptr;
  return out;
}

}  // namespace

std::string report_json(const agent::JobResult& result, const spec::JobSpec& spec, int exit_code) {
  json::object out;
  out["version"] = 1;
  out["run_id"] = spec.run_id;
  out["entry_point"] = workers::entry_name(spec);
  out["host"] = agent::host_name();
  out["ending"] = agent::ending_name(result.ending.kind);
  out["succeeded"] = result.succeeded();
  out["exit_code"] = exit_code;
  out["verdict"] = agent::verdict_sentence(result);
  out["requeue"] = result.ending.requeue;
  out["started"] = to_seconds(result.started);
  out["finished"] = to_seconds(result.finished);
  out["restarts"] = result.restarts;
  out["max_restarts"] = result.max_restarts;
  out["local_world_size"] = result.local_world_size;
  if (result.round) {
    out["group_rank"] = result.round->group_rank;
    out["group_world_size"] = result.round->group_world_size();
    out["world_size"] = result.round->world_size;
  }
  out["culprit"] = culprit_json(result);
  out["failures"] = failures_json(result);
  out["attempts"] = attempts_json(result);
  out["goodput"] = goodput_json(result.goodput);
  out["run_directory"] = text_or_null(result.run_dir);
  return json::serialize(out) + "\n";
}

Status write_report(const std::string& path, const std::string& text) {
  const std::string part = path + ".part";
  const auto refuse = [&] {
    return std::unexpected(errno_error(Code::Io, "cannot write the report " + path, errno));
  };
  UniqueFd fd(::open(part.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644));
  if (!fd) return refuse();
  std::string_view rest = text;
  while (!rest.empty()) {
    const auto put = ::write(fd.get(), rest.data(), rest.size());
    if (put < 0) return refuse();
    rest.remove_prefix(static_cast<std::size_t>(put));
  }
  fd.reset();
  if (::rename(part.c_str(), path.c_str()) != 0) return refuse();
  return {};
}

}  // namespace elastrun

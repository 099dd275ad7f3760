// SPDX-License-Identifier: Apache-2.0
#include "report.hpp"

#include "agent/verdict/failure_report.hpp"
#include "agent/verdict/verdict.hpp"
#include "core/host_name.hpp"
#include "core/log.hpp"
#include "workers/command.hpp"

#include <cstdlib>
#include <fmt/format.h>
#include <unistd.h>

namespace elastrun {
namespace {

// A run shorter than this needs no account of where its time went.
constexpr Duration kLongRun = std::chrono::seconds(10);

std::string torchrun_part(const agent::JobResult& result, const spec::JobSpec& spec,
                          const agent::Reader& reader) {
  using Kind = agent::Ending::Kind;
  const auto& ending = result.ending;
  if (ending.kind == Kind::Signalled) {
    return agent::signal_exception(ending.signal) + "\n";
  }
  const bool own = ending.kind == Kind::WorkersFailed || ending.kind == Kind::JobFailed;
  if (!own || !result.judgement) return {};
  // A worker that we have stopped did not cause it; torchrun's sentence would blame it.
  if (result.judgement->failures[result.judgement->root].stopped_by_us) return {};
  const auto name = workers::entry_name(spec);
  return "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: " +
         (reader.looks_on ? agent::brief_report(*result.judgement, name)
                          : agent::torchrun_report(*result.judgement, name, host_name()) + "\n");
}

/// One node of a round: each has much the same account of the time.
bool speaks_for_the_job(const agent::JobResult& result) {
  return result.round && result.round->group_rank == 0;
}

/// The verdict, above the last line: what that says already is not said twice.
std::string verdict_above(const std::string& outcome, const agent::JobResult& result,
                          const spec::JobSpec& spec) {
  const bool preempted = result.ending.kind == agent::Ending::Kind::Preempted;
  // Else who reads it would requeue the job a second time.
  const bool by_itself = preempted && spec.requeues && !spec.requeue_command.empty();
  auto text =
      agent::verdict_text(result, host_name(),
                          (by_itself ? "elastrun asks Slurm itself, " : "") + spec.requeue_command);
  const auto sentence = agent::verdict_sentence(result);
  const auto head = "elastrun: " + sentence + "\n";
  if (!text.starts_with(head) || !outcome.contains(": " + sentence)) return text;
  const bool more = text.size() > head.size();
  const bool unsaved = result.preemption && !result.preemption->failure.empty();
  const auto* title = !preempted ? "elastrun: why it failed\n"
                      : unsaved  ? "elastrun: preempted, not saved\n"
                                 : "elastrun: preempted, not failed\n";
  return text.replace(0, head.size(), more ? title : "");
}

void warn_of(const Result<std::string>& written) {
  if (!written) log::warning("error_file", "{}", written.error().text);
  if (written && !written->empty()) log::warning("error_file", "{}", *written);
}

}  // namespace

std::string report_text(const agent::JobResult& result, const spec::JobSpec& spec,
                        const agent::Reader& reader) {
  using spec::Summary;
  const bool worth_it = !result.succeeded() || result.restarts > 0 || reader.looks_on ||
                        result.goodput.elapsed >= kLongRun;
  const bool told = worth_it && spec.summary != Summary::Off;
  const auto outcome = told ? agent::outcome_text(result, spec, reader) : "";
  const bool whole = told && spec.summary == Summary::Full && speaks_for_the_job(result);
  return torchrun_part(result, spec, reader) +
         (whole ? agent::account_text(result, spec, reader) : "") +
         verdict_above(outcome, result, spec) + outcome;
}

void hand_error_on(const agent::JobResult& result, files::BlockingCalls& files) {
  // Of a launcher around this one, which reads there why this program has failed.
  const char* own = std::getenv("TORCHELASTIC_ERROR_FILE");
  if (result.succeeded() || own == nullptr || *own == '\0') return;
  const std::string to = own;
  const auto* root =
      result.judgement ? &result.judgement->failures[result.judgement->root] : nullptr;
  if (root == nullptr) {
    const auto write = [to, sentence = agent::verdict_sentence(result)] {
      return workers::write_error_file(to, sentence, std::chrono::system_clock::now());
    };
    return files.make(to, write, warn_of);
  }
  // Without one torchrun copies nothing either.
  if (!root->error_file) return;
  const auto copy = [to, from = root->error_file_path, code = root->status.as_python()] {
    return workers::copy_error_file(from, to, code);
  };
  files.make(to, copy, warn_of);
}

void hand_error_on(const std::string& message) {
  const char* own = std::getenv("TORCHELASTIC_ERROR_FILE");
  if (own == nullptr || *own == '\0') return;
  warn_of(workers::write_error_file(own, message, std::chrono::system_clock::now()));
}

}  // namespace elastrun

// SPDX-License-Identifier: Apache-2.0
#include "report.hpp"

#include "agent/verdict/failure_report.hpp"
#include "agent/verdict/verdict.hpp"
#include "core/host_name.hpp"
#include "core/log.hpp"
#include "core/text.hpp"
#include "core/user_locale.hpp"
#include "workers/command.hpp"

#include <cstdlib>
#include <fmt/format.h>
#include <unistd.h>

namespace elastrun {
namespace {

// A run shorter than this needs no account of where its time went.
constexpr Duration kLongRun = std::chrono::seconds(10);

std::string torchrun_part(const agent::JobResult& result, const spec::JobSpec& spec) {
  using Kind = agent::Ending::Kind;
  const auto& ending = result.ending;
  if (ending.kind == Kind::Signalled) {
    return agent::signal_exception(ending.signal) + "\n";
  }
  const bool own = ending.kind == Kind::WorkersFailed || ending.kind == Kind::JobFailed;
  if (!own || !result.judgement) return {};
  if (result.judgement->failures[result.judgement->root].stopped_by_us) return {};
  return "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: " +
         agent::torchrun_report(*result.judgement, workers::entry_name(spec), host_name()) + "\n";
}

/// One node of a round: each has much the same account of the time.
bool speaks_for_the_job(const agent::JobResult& result) {
  return result.round && result.round->group_rank == 0;
}

void warn_of(const Result<std::string>& written) {
  if (!written) log::warning("error_file", "{}", written.error().text);
  if (written && !written->empty()) log::warning("error_file", "{}", *written);
}

}  // namespace

std::string report_text(const agent::JobResult& result, const spec::JobSpec& spec,
                        bool person_looks_on) {
  std::string text = torchrun_part(result, spec);
  text += agent::verdict_text(result, host_name(), spec.requeue_command);
  using spec::Summary;
  if (spec.summary == Summary::Off) return text;
  const bool worth_it = !result.succeeded() || result.restarts > 0 || person_looks_on ||
                        result.goodput.elapsed >= kLongRun;
  if (!worth_it) return text;
  const bool whole = spec.summary == Summary::Full && speaks_for_the_job(result);
  return text + (whole ? agent::summary_text(result, spec, person_looks_on && locale_is_utf8())
                       : agent::outcome_text(result, spec));
}

void hand_error_on(const agent::JobResult& result, files::BlockingCalls& files) {
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

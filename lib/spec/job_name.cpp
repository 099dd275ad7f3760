// SPDX-License-Identifier: Apache-2.0
#include "spec/job_name.hpp"

#include "core/text.hpp"
#include "spec/argument_words.hpp"

#include <fmt/format.h>

namespace elastrun::spec {
namespace {

constexpr std::size_t kLongestName = 100;

std::string_view name_of_script(std::string_view script) {
  while (script.ends_with('/')) script.remove_suffix(1);
  script.remove_prefix(script.rfind('/') + 1);
  if (script.ends_with(".py")) script.remove_suffix(3);
  return script;
}

}  // namespace

std::optional<Refusal> name_job(JobSpec& job, Values& values) {
  const auto& given = values[Opt::Name];
  job.name = given.text;
  // It becomes a part of file names, and stands in tables and on terminals, where control
  // characters do harm.
  if (job.name.size() > kLongestName || job.name.contains('/') || printable(job.name) != job.name) {
    return Refusal{
        fmt::format("{}: {} cannot be the name of a job", given.source,
                    in_quotes(printable(job.name))),
        2, false,
        fmt::format("at most {} bytes of UTF-8, without / and control characters", kLongestName)};
  }
  job.named = !job.name.empty();
  if (job.named) return std::nullopt;
  const auto& id = values[Opt::RdzvId];
  // Its default, given in full, names no job.
  const bool has_id = values.is_given(id.id) && !id.text.empty() && id.text != row(id.id).fallback;
  if (has_id) {
    job.name = id.text;
  } else {
    job.name = values.is_on(Opt::Module) ? job.script : name_of_script(job.script);
    if (job.name.empty()) job.name = "job";
  }
  values.imply(Opt::Name, job.name, has_id ? "implied by --rdzv-id" : "implied by the script");
  return std::nullopt;
}

}  // namespace elastrun::spec

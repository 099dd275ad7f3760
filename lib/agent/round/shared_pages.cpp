// SPDX-License-Identifier: Apache-2.0
#include "agent/round/shared_pages.hpp"

#include "core/log.hpp"
#include "core/text.hpp"

#include <algorithm>
#include <fmt/format.h>

namespace elastrun::agent {

SharedPages::SharedPages(const spec::JobSpec& spec)
    : wanted_(spec.worker_lib || spec.saves_when_preempted() || spec.restart_policy_auto) {}

std::string SharedPages::make(int local_rank) {
  // First: what the worker of the last attempt left must not speak for its successor.
  pages_.erase(local_rank);
  if (!wanted_) return {};
  auto page = workers::SharedPage::make();
  if (!page) {
    // Said once: the next one would fail the same way.
    wanted_ = false;
    log::warning("page", "What workers last did cannot be read after their end: {}",
                 page.error().text);
    return {};
  }
  return pages_.emplace(local_rank, std::move(*page)).first->second.path();
}

std::optional<workers::PageContents> SharedPages::read(int local_rank) const {
  const auto found = pages_.find(local_rank);
  if (found == pages_.end()) return std::nullopt;
  return found->second.read();
}

void SharedPages::tell_refused(int local_rank, std::uint64_t count) const {
  const auto found = pages_.find(local_rank);
  if (found != pages_.end()) found->second.tell_refused(count);
}

void SharedPages::tell_save(int local_rank, std::int64_t step) const {
  const auto found = pages_.find(local_rank);
  if (found != pages_.end()) found->second.tell_save(step);
}

void SharedPages::explain(workers::Failure& failure) const {
  failure.page = read(failure.local_rank);
}

std::string page_sentence(const workers::PageContents& page, TimePoint at, std::size_t most) {
  std::string text;
  if (page.step) {
    // Nothing that a worker writes makes a time of before the machine started, or of tomorrow.
    const auto before = std::clamp(at - page.step_at, Duration::zero(), at.time_since_epoch());
    text = fmt::format("step {} ({} before)", *page.step, format_duration(before));
  }
  if (!page.phase.empty()) {
    text += fmt::format("{}in phase {}", text.empty() ? "" : ", ", page.phase);
  }
  const auto shown = std::min(most, page.series.size());
  for (std::size_t i = 0; i < shown; ++i) {
    const auto& series = page.series[i];
    const bool plain = series.group.empty() || series.group == "worker";
    text += fmt::format("{}{}{}={:.6g}", text.empty() ? "" : (i == 0 ? "; " : ", "),
                        plain ? "" : series.group + "/", series.name, series.value);
  }
  if (shown < page.series.size()) text += fmt::format(" and {} more", page.series.size() - shown);
  return text;
}

}  // namespace elastrun::agent

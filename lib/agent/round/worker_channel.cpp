// SPDX-License-Identifier: Apache-2.0

#include "agent/round/worker_channel.hpp"

#include "core/log.hpp"
#include "core/text.hpp"

#include <algorithm>
#include <fmt/format.h>
#include <utility>

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

WorkerChannel::WorkerChannel(boost::asio::io_context& loop, guardian::Agent& guardian,
                             workers::Channel::OnMessage on_message,
                             workers::Channel::Workers workers)
    : loop_(loop),
      guardian_(guardian),
      on_message_(std::move(on_message)),
      workers_(std::move(workers)) {}

void WorkerChannel::open(MaybePlace place) {
  tried_ = true;
  // The new one may have got the name of the old one, which must not remove it then.
  if (const auto old = close()) {
    old->give_up_name();
    if (!old->own_folder.empty()) guardian_.forget(old->own_folder);
  }
  if (!place) return log::warning("channel", "Workers cannot report: {}", place.error().text);
  if (const auto& own = (*place)->own_folder; !own.empty()) guardian_.remember_directory(own);
  channel_ = std::make_unique<workers::Channel>(loop_, std::move(*place), on_message_, workers_);
}

void WorkerChannel::look_in(const std::string& folder) {
  // A cleaner of temporary files may have removed the name: workers of the next start could not
  // connect.
  const bool gone = channel_ && workers::ChannelPlace::is_gone(channel_->path());
  if (!tried_ || gone) open(workers::ChannelPlace::find(folder));
}

workers::Channel::Statistics WorkerChannel::statistics() const {
  // Counters of a job never go back, though each channel counts from zero.
  auto all = earlier_;
  if (!channel_) return all;
  const auto now = channel_->statistics();
  all.connections += now.connections;
  all.messages += now.messages;
  all.refused += now.refused;
  all.strange += now.strange;
  all.not_told += now.not_told;
  return all;
}

std::unique_ptr<workers::ChannelPlace> WorkerChannel::close() {
  if (!channel_) return nullptr;
  // The counts outlive the channel: totals of metrics must not fall.
  earlier_ = statistics();
  auto place = channel_->take_place();
  channel_.reset();
  return place;
}

void WorkerChannel::end(files::BlockingCalls* far) {
  const auto place = close();
  if (!place) return;
  // The guardian removes the folder if that call is never made.
  const auto removed = [this, folder = place->own_folder](const auto&) {
    if (!folder.empty()) guardian_.forget(folder);
  };
  const auto what = place->path;
  far != nullptr ? far->make(what, place->take_removal(), removed)
                 : removed(place->take_removal()());
}

}  // namespace elastrun::agent

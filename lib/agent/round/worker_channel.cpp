// SPDX-License-Identifier: Apache-2.0
#include "agent/round/worker_channel.hpp"

#include "core/log.hpp"

#include <utility>

namespace elastrun::agent {

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

void WorkerChannel::release() {
  if (channel_) channel_->release();
}

void WorkerChannel::release(pid_t sender) {
  if (channel_) channel_->release(sender);
}

void WorkerChannel::answer(const std::string& text) {
  if (channel_) channel_->answer(text);
}

void WorkerChannel::catch_up() {
  if (channel_) channel_->catch_up();
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

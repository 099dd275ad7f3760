// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/error.hpp"
#include "files/blocking_calls.hpp"
#include "process/guardian.hpp"
#include "workers/channel.hpp"

#include <boost/asio/io_context.hpp>
#include <memory>
#include <string>
#include <sys/types.h>

namespace elastrun::agent {

/// The channel of a job's workers, over all attempts: opened at the first start, and opened again
/// at a later one if its name has been removed meanwhile. The guardian knows the folder that it may
/// need for itself. A job without a channel goes on; its workers cannot report, which is said.
class WorkerChannel {
 public:
  using MaybePlace = Result<std::unique_ptr<workers::ChannelPlace>>;

  WorkerChannel(boost::asio::io_context& loop, guardian::Agent& guardian,
                workers::Channel::OnMessage on_message, workers::Channel::Workers workers);
  WorkerChannel(const WorkerChannel&) = delete;
  WorkerChannel& operator=(const WorkerChannel&) = delete;

  /// In place of the one before, whose name is gone.
  void open(MaybePlace place);
  /// Opens it in `folder` if it needs to be. May wait for the file system.
  void look_in(const std::string& folder);
  /// Empty: none.
  std::string path() const { return channel_ ? channel_->path() : std::string(); }
  /// As those of workers::Channel.
  void release();
  void release(pid_t sender);
  void answer(const std::string& text);
  void catch_up();
  /// Of all channels so far.
  workers::Channel::Statistics statistics() const;
  /// Removes its place, by the thread `far` if not null: its file system may not answer.
  void end(files::BlockingCalls* far);

 private:
  std::unique_ptr<workers::ChannelPlace> close();

  boost::asio::io_context& loop_;
  guardian::Agent& guardian_;
  const workers::Channel::OnMessage on_message_;
  const workers::Channel::Workers workers_;
  std::unique_ptr<workers::Channel> channel_;
  workers::Channel::Statistics earlier_;
  bool tried_ = false;
};

}  // namespace elastrun::agent

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/error.hpp"
#include "files/blocking_calls.hpp"
#include "process/guardian.hpp"
#include "spec/job_spec.hpp"
#include "workers/channel.hpp"
#include "workers/failure.hpp"
#include "workers/shared_page.hpp"

#include <boost/asio/io_context.hpp>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
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

  /// In place of the one before, whose name is gone. It was tried then, well or not.
  void open(MaybePlace place);
  /// Opens it in `folder` if it needs to be. May wait for the file system.
  void look_in(const std::string& folder);
  bool tried() const { return tried_; }
  /// Empty: none.
  std::string path() const { return channel_ ? channel_->path() : std::string(); }
  /// As those of workers::Channel.
  void release() {
    if (channel_) channel_->release();
  }
  void release(pid_t sender) {
    if (channel_) channel_->release(sender);
  }
  void answer(const std::string& text) {
    if (channel_) channel_->answer(text);
  }
  void catch_up() {
    if (channel_) channel_->catch_up();
  }
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

/// The pages of this node's workers (ELASTRUN_PAGE), by local rank: new ones for each start,
/// because a worker must not be taken for the one before. Without one a job goes on, which is said
/// once.
class SharedPages {
 public:
  /// Made only for a job that asks for what is written into them.
  explicit SharedPages(const spec::JobSpec& spec);

  /// Where the next worker of that local rank finds its page; empty: it has none.
  std::string make(int local_rank);
  /// What the worker of that local rank last wrote, whether or not it lives.
  std::optional<workers::PageContents> read(int local_rank) const;
  /// As SharedPage: for the worker of that local rank, if it has one.
  void tell_refused(int local_rank, std::uint64_t count) const;
  /// Tells it to save after that step; -1: at once. Without a page it hears nothing.
  void tell_save(int local_rank, std::int64_t step) const;
  /// What it last wrote goes with its failure.
  void explain(workers::Failure& failure) const;

 private:
  bool wanted_;
  std::map<int, workers::SharedPage> pages_;
};

/// "step 120 (3.2 s before), in phase eval; model/loss=0.25, lr=3e-05 and 4 more"; empty if the
/// worker wrote nothing. `at`: the moment that times are told against. At most `most` values.
std::string page_sentence(const workers::PageContents& page, TimePoint at, std::size_t most);

}  // namespace elastrun::agent

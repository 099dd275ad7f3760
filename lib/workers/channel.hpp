// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/error.hpp"
#include "core/lifetime.hpp"
#include "core/log.hpp"
#include "core/unique_fd.hpp"
#include "files/blocking_calls.hpp"
#include "workers/message.hpp"

#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/steady_timer.hpp>
#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <string>
#include <sys/types.h>

namespace elastrun::workers {

/// A listening socket with its name in the file system, and the folder that was made for it alone,
/// if any. Its end removes both. Finding it and its end may wait for the file system.
struct ChannelPlace {
  std::string path, own_folder;  // own_folder empty: none
  UniqueFd socket;
  bool bound = false;

  ChannelPlace() = default;
  ChannelPlace(const ChannelPlace&) = delete;
  ChannelPlace& operator=(const ChannelPlace&) = delete;
  ~ChannelPlace();

  /// Whether the name of a socket that was there has been removed, by a cleaner of temporary files
  /// or with its folder: the socket is out of reach then. May wait for the file system.
  static bool is_gone(const std::string& path);
  /// What has that name now, if anything, is not ours to remove.
  void give_up_name() { bound = false; }
  /// What removes both, in place of the end, and may wait for the file system. If it is never
  /// called, both stay.
  files::BlockingCalls::Call take_removal();

  /// FOLDER/channel; where that is too long for a socket's name (108 bytes), or a file system
  /// without sockets (gcsfuse, SMB, 9p), in a new folder below a temporary one. Fails with Io.
  static Result<std::unique_ptr<ChannelPlace>> find(const std::string& folder);
};

/// The agent's end of ELASTRUN_CHANNEL: a SOCK_SEQPACKET unix socket to which any process of any
/// worker may connect and say something (elastrun-protocol(7)). It only listens: a worker can
/// neither block it nor be blocked by it, but may wait for the end of the connection.
///
/// Whose a sender is is found out when it connects, and remembered: what a short-lived child has
/// said is often read when it has ended. One that has ended before that names the directory of its
/// worker (ELASTRUN_RUN_DIR) in its first packet.
///
/// Only processes of our own user (SO_PEERCRED) are heard; packets that mean nothing are counted
/// and a sender of which nothing else has come is cut off after a few. At most a quarter of
/// RLIMIT_NOFILE, and 4096, are heard at a time, which is said once; others find their connection
/// closed.
class Channel {
 public:
  struct Statistics {
    std::uint64_t connections = 0, messages = 0, refused = 0;
    std::uint64_t strange = 0;   // of the messages: from processes that belong to no worker
    std::uint64_t not_told = 0;  // by workers, who count what they could not send
  };
  /// The process that connected, by its credentials, and that of the worker which it is or is
  /// below; 0: none is known.
  struct Sender {
    pid_t process = 0, worker = 0;
  };
  using OnMessage = std::function<void(Sender sender, Message message)>;
  /// What is known of workers, and what is to be known by them; each may be empty.
  struct Workers {
    /// The worker to which a process belongs, or whose directory that is; 0: none.
    std::function<pid_t(pid_t process)> of;
    std::function<pid_t(const std::string& directory)> in;
    /// A packet of that worker was refused.
    std::function<void(pid_t worker)> refused;
  };

  /// Listens at `place` from now on.
  Channel(boost::asio::io_context& loop, std::unique_ptr<ChannelPlace> place, OnMessage on_message,
          Workers workers = {});
  ~Channel();
  Channel(const Channel&) = delete;
  Channel& operator=(const Channel&) = delete;
  const std::string& path() const { return place_->path; }
  /// For those who end the place elsewhere; then the channel is only to be destroyed.
  std::unique_ptr<ChannelPlace> take_place() { return std::move(place_); }
  /// Ends the connections of all who said that they have returned: what they wait for.
  void release();
  /// Ends that of one process: it belongs to no worker, so nothing else would let it go.
  void release(pid_t sender);
  /// Gives the text, in a file in memory, to the processes that have said StacksAsked, and hears
  /// them no more. One that does not read loses it.
  void answer(const std::string& text);
  /// Hears now what has been said: before a worker is judged by what it has not said. Peers that
  /// have hung up, or are to be cut off, are seen by the wait on them.
  void catch_up();
  Statistics statistics() const { return statistics_; }

 private:
  struct Connection;
  // A list, because completions hold iterators, which have to survive the coming and going of
  // others.
  using Connections = std::list<Connection>;

  void await_connection();
  void await_descriptor();
  bool accept_all();
  UniqueFd accept_one();
  bool refuse_one();
  void add(UniqueFd fd);
  void too_many();
  void find_worker(Sender& sender) const;
  void await_packet(Connections::iterator one);
  bool read_packets(Connection& one, int most);
  bool take(Connection& one, Result<Message> message);
  void hear(Sender& sender, Message message);

  boost::asio::io_context& loop_;
  std::unique_ptr<ChannelPlace> place_;
  boost::asio::posix::stream_descriptor listener_;
  boost::asio::steady_timer pause_;
  const OnMessage on_message_;
  const Workers workers_;
  const std::size_t most_;
  UniqueFd spare_;  // with which to refuse when descriptors run out
  bool said_too_many_ = false;
  RateLimitedLog limited_{"channel"};
  Connections connections_;
  Statistics statistics_;
  Lifetime lifetime_;  // completions may be queued when we go
};

}  // namespace elastrun::workers

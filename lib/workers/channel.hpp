// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/error.hpp"
#include "core/file_io.hpp"
#include "core/lifetime.hpp"
#include "core/log.hpp"
#include "core/unique_fd.hpp"
#include "files/blocking_calls.hpp"
#include "process/guardian.hpp"
#include "workers/message.hpp"

#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/steady_timer.hpp>
#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <optional>
#include <string>
#include <sys/types.h>

namespace elastrun::workers {

/// A listening socket with its name. Finding it may wait for the file system.
struct ChannelPlace : OwnName {
  UniqueFd socket;

  /// Whether the name of a socket that was there has been removed, by a cleaner of temporary files
  /// or with its folder: the socket is out of reach then. May wait for the file system.
  static bool is_gone(const std::string& path);
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
///
/// One for a job, over all attempts: opened at the first start, and opened again at a later one if
/// its name has been removed meanwhile. A job without a channel goes on; its workers cannot report,
/// which is said.
class Channel {
 public:
  using MaybePlace = Result<std::unique_ptr<ChannelPlace>>;
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

  /// Borrows the guardian, which gets to know the folder that a place may need for itself.
  Channel(boost::asio::io_context& loop, guardian::Agent& guardian, OnMessage on_message,
          Workers workers = {});
  ~Channel();
  Channel(const Channel&) = delete;
  Channel& operator=(const Channel&) = delete;

  /// Listens there from now on, in place of the one before, whose name is gone. It was tried then,
  /// well or not.
  void open(MaybePlace place);
  /// Opens it in `folder` if it needs to be. May wait for the file system.
  void look_in(const std::string& folder);
  bool tried() const { return tried_; }
  /// Empty: none.
  std::string path() const { return place_ ? place_->path : std::string(); }
  /// Ends it and removes its place, by the thread `far` if not null: its file system may not
  /// answer.
  void end(files::BlockingCalls* far);
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

  std::unique_ptr<ChannelPlace> close();
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
  guardian::Agent& guardian_;
  std::unique_ptr<ChannelPlace> place_;  // null: not open
  boost::asio::posix::stream_descriptor listener_;
  boost::asio::steady_timer pause_;
  const OnMessage on_message_;
  const Workers workers_;
  const std::size_t most_;
  bool tried_ = false;
  UniqueFd spare_;  // with which to refuse when descriptors run out
  bool said_too_many_ = false;
  RateLimitedLog limited_{"channel"};
  Connections connections_;
  Statistics statistics_;
  std::optional<Lifetime> open_;  // completions may be queued when it is closed
};

}  // namespace elastrun::workers

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/error.hpp"
#include "core/unique_fd.hpp"
#include "files/blocking_calls.hpp"
#include "workers/message.hpp"

#include <boost/asio/io_context.hpp>
#include <cstdint>
#include <functional>
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

  static std::unique_ptr<Channel> open(boost::asio::io_context& loop,
                                       std::unique_ptr<ChannelPlace> place, OnMessage on_message,
                                       Workers workers = {});
  virtual ~Channel() = default;
  virtual const std::string& path() const = 0;
  /// For those who end the place elsewhere; then the channel is only to be destroyed.
  virtual std::unique_ptr<ChannelPlace> take_place() = 0;
  /// Ends the connections of all who said that they have returned: what they wait for.
  virtual void release() = 0;
  /// The same for one process: it belongs to no worker, so nothing else would let it go.
  virtual void release(pid_t sender) = 0;
  /// Gives the text, in a file in memory, to the processes that have said StacksAsked, and hears
  /// them no more. One that does not read loses it.
  virtual void answer(const std::string& text) = 0;
  /// Hears now what has been said: before a worker is judged by what it has not said.
  virtual void catch_up() = 0;
  virtual Statistics statistics() const = 0;
};

}  // namespace elastrun::workers

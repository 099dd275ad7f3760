// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/clock.hpp"
#include "core/error.hpp"
#include "core/file_io.hpp"
#include "core/lifetime.hpp"
#include "core/unique_fd.hpp"

#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <csignal>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <sys/types.h>
#include <tuple>
#include <utility>
#include <vector>

namespace elastrun::timer {

/// A worker's request: "kill me with `signal` unless I take this back before `expiry`", or, without
/// an expiry, that it is taken back.
struct Request {
  std::int64_t worker = 0;  // its pid
  std::string scope;        // "train.py#57"
  std::optional<TimePoint> expiry{};
  int signal = SIGKILL;      // 0 or less: told, but not killed
  std::uint64_t number = 0;  // tells apart timers of one worker and scope, where a client does
  TimePoint armed{};         // when the worker asked, or was heard
  bool nests = false;        // torch's client: blocks inside each other may have one scope
};

/// A timer of a worker, once it is armed.
struct Expired {
  std::string scope;
  TimePoint expiry;
  int signal = SIGKILL;
  TimePoint armed{};
  Duration after() const { return expiry - armed; }  // as the worker had asked
  bool operator==(const Expired&) const = default;
};
/// The expired timers of one worker, by the time of expiry.
struct ExpiredWorker {
  std::int64_t worker = 0;
  std::vector<Expired> timers;
  /// The first timer that has a signal, else the first: the one to be named as the reason.
  const Expired& reason() const;
  /// Its signal; 0: no timer asked for a kill.
  int signal() const { return reason().signal > 0 ? reason().signal : 0; }
};

/// True if this is the scope that torch's expires() makes up when it is given none: it means the
/// caller's file and line, but finds always those of the context manager, ".../contextlib.py#137".
bool is_torch_default(std::string_view scope);

/// Who must report by when: the expiration timers of all workers, pure. A timer is named by worker,
/// scope and number; registering it again replaces it.
///
/// Makes separate timers of those that torch's expires() without a scope has put into one scope:
/// with torch, an inner one takes the place of the outer, and its end disarms both. The requests of
/// a process are taken as nested, in order: the end is that of the newest. A timer that expires no
/// later than one that begins inside it is suspended: a function that calls itself arms its timer
/// again, as with torch. When the inner one has ended, the outer is armed again, with its whole
/// time, but not for earlier than what it was suspended for. Requests of threads may overlap
/// instead; whatever their order, no timer is armed for earlier than all those whose blocks have
/// not ended: so a process that is in time is never killed.
class Deadlines {
 public:
  static constexpr std::size_t kMostOfWorker = 4096;  // no script needs so many at a time

  /// False if it was ignored: this worker has as many timers as it may have.
  bool apply(const Request& request);
  /// The earliest expiry, for the one alarm that is needed.
  std::optional<TimePoint> next() const;
  /// Takes out what has expired by `now` (including), grouped by worker, those with the earliest
  /// expiry first. All other timers of a worker that is to be killed go with them: it is handled
  /// once.
  std::vector<ExpiredWorker> take_expired(TimePoint now);
  /// The worker has ended: its timers mean nothing any more.
  void forget(std::int64_t worker);
  std::size_t size() const { return by_expiry_.size(); }

 private:
  static constexpr std::size_t kDeepest = 1000;      // Python's own limit of recursion
  static constexpr std::size_t kMostNested = 10000;  // processes with torch's scope at a time

  using Name = std::pair<std::string, std::uint64_t>;  // scope and number
  struct Block {
    Duration after;
    TimePoint expiry;
    int signal;
    bool suspended = false;
  };
  using Blocks = std::vector<Block>;
  bool set(const Request& request);
  bool begin(Blocks& blocks, const Request& request);
  bool end(Blocks& blocks, const Request& request, TimePoint now);

  std::map<std::int64_t, std::map<Name, Expired>> timers_;  // by worker
  std::set<std::tuple<TimePoint, std::int64_t, Name>> by_expiry_;
  std::map<std::pair<std::int64_t, std::string>, Blocks> nested_;
};

/// Keeps the timers of running processes, tells when some expire, and ends processes. A process is
/// held by a pidfd from its first request on: so a pid that the kernel gives to another process
/// means nothing, and the timers of a process go with it at once.
class Watchdog {
 public:
  /// The timers' owner: the agent's, torch's server, or a test.
  class Owner {
   public:
    virtual ~Owner() = default;
    /// True if requests of this process count.
    virtual bool is_ours(pid_t process) const = 0;
    /// Called before timers are found expired: time to read requests that wait to be read.
    virtual void read_waiting() {}
    /// `workers` is never empty. All timers of those processes that are to be ended are gone.
    virtual void expired(std::vector<ExpiredWorker> workers) = 0;
  };
  /// Borrows all.
  Watchdog(boost::asio::io_context& loop, Clock& clock, Owner& owner);
  virtual ~Watchdog() = default;
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

  /// False if it was ignored although its process runs: it is not ours, or has too many timers. A
  /// request that is read after its process has ended is void, and no fault of anybody's.
  bool request(const Request& request);
  /// Signals a process that had timers, and tries again each second as long as that fails and the
  /// process runs. Succeeds as well if it has ended.
  Status reap(pid_t pid, int signal);
  /// True if a process that had timers has not ended.
  bool runs(pid_t pid) const;
  /// Forgets all timers and processes.
  void clear();
  const Deadlines& deadlines() const { return deadlines_; }

 private:
  struct Process {
    UniqueFd pidfd;
    std::unique_ptr<boost::asio::posix::stream_descriptor> watch;
    int reap_signal = 0;  // to be sent again
  };
  enum class Held { Yes, Ended, No };
  Held hold(pid_t pid);
  void forget(pid_t pid);
  void arm();
  void look_again();
  void expire();
  /// As pidfd_send_signal(2), which a test makes fail.
  virtual Status send(int pidfd, int signal) const;
  void reap_again();

  boost::asio::io_context& loop_;
  Clock& clock_;
  Owner& owner_;
  Deadlines deadlines_;
  std::map<pid_t, Process> processes_;
  std::unique_ptr<Alarm> alarm_, last_reading_, again_;
  bool due_ = false;   // last_reading_ is armed
  Lifetime lifetime_;  // completions may be queued when we go
};

/// One line of torch's FileTimerClient, without its end: a JSON object with pid, scope_id,
/// expiration_time (seconds since the epoch by the wall clock; negative: released) and signal.
/// Other members mean nothing to us.
///
/// The expiration is turned into a deadline of the monotonic clock at once, so that a wall clock
/// that is set later neither kills nor spares anybody. One in the past has expired already.
/// Where a writer has died in the middle of its line, the request that follows on the same line
/// counts. Hostile until parsed: anything else fails with Protocol and one sentence. Pure.
Result<Request> parse_torch_request(std::string_view line, TimePoint now, WallTime wall);

/// The expired timers of each worker, by its pid: each a JSON text as torch's clients send them.
using ExpiredTexts = std::map<std::int64_t, std::vector<std::string>>;
using DebugInfoHook = std::function<void(const std::string& run_id, const ExpiredTexts& timers)>;

/// torch's hook of the same name: called when timers have expired, before anybody is reaped. Writes
/// them to the log at level info, or does what set_debug_info_hook() was given.
void log_debug_info_for_expired_timers(const std::string& run_id, const ExpiredTexts& timers);
/// For launchers of your own; empty: back to the log. It must not wait.
void set_debug_info_hook(DebugInfoHook hook);

/// A FIFO of our own, open at both ends.
struct RequestPlace : OwnName {
  UniqueFd reading, writing;

  /// At `path`, in place of a FIFO of our own user that an earlier agent has left there; if `path`
  /// is empty, in a new folder below $TMPDIR or /tmp. Fails with Io: anything else is there,
  /// another process reads that FIFO (the agent above this one), or no FIFO can be made.
  static Result<std::unique_ptr<RequestPlace>> make(const std::string& path);
};

/// The FIFO to which torch's FileTimerClients write their requests, a line each. Only our own user
/// can write to it (mode 0600). It is never waited for: a client that writes nothing, or half a
/// line, delays no other. One descriptor to write with is kept here, so that clients may come and
/// go.
class RequestPipe {
 public:
  using OnLine = std::function<void(std::string_view line)>;

  RequestPipe(boost::asio::io_context& loop, std::unique_ptr<RequestPlace> place, OnLine on_line);
  RequestPipe(const RequestPipe&) = delete;
  RequestPipe& operator=(const RequestPipe&) = delete;

  const std::string& path() const { return place_->path; }
  /// Empty: none was made.
  const std::string& own_folder() const { return place_->own_folder; }
  /// Ends reading and hands its place over.
  std::unique_ptr<RequestPlace> take_place();
  /// Reads what is there now, for callers that must know of every request before this moment.
  void catch_up();

 private:
  void await_bytes();

  std::unique_ptr<RequestPlace> place_;
  boost::asio::posix::stream_descriptor reader_;
  const OnLine on_line_;
  std::string line_;   // what has no end yet
  Lifetime lifetime_;  // completions may be queued when we go
};

}  // namespace elastrun::timer

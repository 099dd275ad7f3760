// SPDX-License-Identifier: Apache-2.0
#include "process/fork_server.hpp"

#include "core/file_io.hpp"
#include "core/text.hpp"

#include <array>
#include <cerrno>
#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <optional>
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

namespace elastrun::process {
namespace {

using Steady = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr idtype_t kOfPidfd = static_cast<idtype_t>(3);  // P_PIDFD, Linux 5.4
constexpr std::size_t kLongestWord = 4096;  // what the server or a child may say at once
constexpr int kMostWords = 100;             // of the server, since it was last asked
constexpr milliseconds kHangsUpWithin{100};

struct Pair {
  UniqueFd ours, theirs;
};

Result<Pair> make_pair() {
  std::array<int, 2> ends{};
  // Packets: what is sent at once is read at once, with its descriptors.
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends.data()) != 0) {
    return std::unexpected(errno_error(Code::Io, "socketpair", errno));
  }
  return Pair{UniqueFd(ends[0]), UniqueFd(ends[1])};
}

enum class Heard { Nothing, Packet, End };

Heard hear_packet(int socket, std::string& said) {
  std::array<char, kLongestWord> buffer{};
  const auto size = ::recv(socket, buffer.data(), buffer.size(), MSG_DONTWAIT);
  if (size < 0 && (errno == EAGAIN || errno == EINTR)) return Heard::Nothing;
  if (size <= 0) return Heard::End;
  said.assign(buffer.data(), static_cast<std::size_t>(size));
  return Heard::Packet;
}

/// True if one of them can be read, or has ended, before `until`.
bool await_words(int socket, int other, TimePoint until) {
  std::array<pollfd, 2> waiting{pollfd{socket, POLLIN, 0}, pollfd{other, POLLIN, 0}};
  const auto left = std::chrono::ceil<milliseconds>(until - Steady::now()).count();
  return left > 0 && ::poll(waiting.data(), waiting.size(), static_cast<int>(left)) != 0;
}

/// Empty once `until` has passed, or if the other end has gone.
std::optional<std::string> await_packet(int socket, TimePoint until) {
  while (true) {
    std::string said;
    const auto heard = hear_packet(socket, said);
    if (heard == Heard::Packet) return said;
    if (heard == Heard::End || !await_words(socket, -1, until)) return std::nullopt;
  }
}

/// Writes spawn()'s request for forkserver.py: into a file, since an environment may be
/// longer than a packet.
Result<UniqueFd> write_order(const LaunchRequest& request) {
  std::string text;
  const auto add = [&text](std::string_view one) { text.append(one).push_back('\0'); };
  add(fmt::format("{}", fmt::join(request.cpus, ",")));
  add(fmt::to_string(request.argv.size()));
  for (const auto& one : request.argv) add(one);
  for (const auto& one : request.environment) add(one);
  return memory_file("elastrun-order", text);
}

/// 0 without one.
std::uint64_t identity(int cgroup_fd) {
  struct stat about {};
  return cgroup_fd >= 0 && ::fstat(cgroup_fd, &about) == 0 ? about.st_ino : 0;
}

/// The process of "born PID", which may not be our child yet.
Result<Spawned> hold_born(std::string_view said) {
  constexpr std::string_view kBorn = "born ", kUnborn = "unborn ";
  if (said.starts_with(kUnborn)) {
    return fail(Code::Spawn,
                "no child was forked: " + printable(std::string(said.substr(kUnborn.size()))));
  }
  if (!said.starts_with(kBorn)) return fail(Code::Spawn, "no child was forked in time");
  const auto pid = parse_int(said.substr(kBorn.size()));
  // To kill(2) 0 is our own group, 1 is init, and -1 is everybody.
  if (!pid || *pid <= 1 || *pid > INT32_MAX) return fail(Code::Spawn, "its child has no number");
  UniqueFd pidfd(static_cast<int>(::syscall(SYS_pidfd_open, static_cast<pid_t>(*pid), 0)));
  if (!pidfd) return fail(Code::Spawn, "its child has ended");
  return Spawned{static_cast<pid_t>(*pid), std::move(pidfd)};
}

/// True if it is a child of ours, running or a zombie: the number came from a process that has run
/// others' code.
bool is_own_child(int pidfd) {
  siginfo_t info{};
  return pidfd >= 0 &&
         ::waitid(kOfPidfd, static_cast<id_t>(pidfd), &info, WEXITED | WNOHANG | WNOWAIT) == 0;
}

/// One that is not our child yet ends without its socket.
void kill_child(int pidfd) {
  if (is_own_child(pidfd)) ::syscall(SYS_pidfd_send_signal, pidfd, SIGKILL, nullptr, 0);
}

void kill_and_reap(int pidfd, bool wait) {
  if (!is_own_child(pidfd)) return;
  kill_child(pidfd);
  constexpr int kMoment = 1000;  // milliseconds; the sweep or the guardian reaps what takes longer
  pollfd waiting{pidfd, POLLIN, 0};
  if (wait) ::poll(&waiting, 1, kMoment);
  siginfo_t info{};
  ::waitid(kOfPidfd, static_cast<id_t>(pidfd), &info, WEXITED | WNOHANG);
}

}  // namespace

Result<std::unique_ptr<ForkServer>> ForkServer::start(boost::asio::io_context& io,
                                                      LaunchRequest request) {
  auto pair = make_pair();
  if (!pair) return std::unexpected(pair.error());
  // Its modules are not to speak: they will again where a worker imports them by itself.
  const UniqueFd null(::open("/dev/null", O_RDWR | O_CLOEXEC));
  request.stdin_fd = pair->theirs.get();
  request.stdout_fd = request.stderr_fd = null.get();
  auto server = spawn(io, request);
  if (!server) return std::unexpected(server.error());
  return std::unique_ptr<ForkServer>(new ForkServer(std::move(*server), std::move(pair->ours)));
}

Result<std::unique_ptr<ForkServer>> ForkServer::adopt(UniqueFd control, Duration limit) {
  int type = 0;
  socklen_t size = sizeof type;
  if (::getsockopt(control.get(), SOL_SOCKET, SO_TYPE, &type, &size) != 0 ||
      type != SOCK_SEQPACKET) {
    return fail(Code::Spawn,
                fmt::format("descriptor {} is not a socket of packets", control.get()));
  }
  ::fcntl(control.get(), F_SETFD, FD_CLOEXEC);
  const auto said = await_packet(control.get(), Steady::now() + limit);
  if (!said) return fail(Code::Spawn, "it has ended");
  auto server = hold_born(*said);
  if (!server || !is_own_child(server->pidfd.get()))
    return fail(Code::Spawn, "it is not our child");
  std::unique_ptr<ForkServer> adopted(new ForkServer(std::move(*server), std::move(control)));
  adopted->state_ = State::Ready;
  return adopted;
}

ForkServer::~ForkServer() {
  // All get the signal before the first is waited for.
  look();
  kill_child(server_.pidfd.get());
  for (auto& [slot, child] : waiting_) kill_child(child.pidfd.get());
  for (auto& [slot, child] : waiting_) kill_and_reap(child.pidfd.get(), true);
  kill_and_reap(server_.pidfd.get(), true);
}

void ForkServer::give_up(std::string why) {
  if (state_ != State::Refused) state_ = State::Gone;
  if (why_.empty()) why_ = std::move(why);
  control_.reset();
  for (auto& [slot, child] : waiting_) kill_and_reap(child.pidfd.get(), true);
  waiting_.clear();
  kill_and_reap(server_.pidfd.get(), true);
}

void ForkServer::hear(const std::string& said) {
  constexpr std::string_view kRefused = "refused ", kStale = "stale: ";
  imports_again_ = said == "loading" && state_ == State::Ready;
  if (imports_again_) return;
  if (said == "ready") {
    state_ = State::Ready;
    return;
  }
  if (!said.starts_with(kRefused)) return give_up("it said something without a meaning");
  why_ = printable(said.substr(kRefused.size()));
  // Another server imports what has changed since; any other refusal it would repeat.
  if (!why_.starts_with(kStale)) state_ = State::Refused;
  give_up({});
}

void ForkServer::look() {
  listen();
  for (auto& [slot, child] : waiting_) {
    if (child.pid == 0) (void)wait_for_birth(child, TimePoint());
  }
}

void ForkServer::listen() {
  std::string said;
  for (int words = 0; control_; ++words) {
    const auto heard = hear_packet(control_.get(), said);
    if (heard == Heard::Nothing) break;
    if (heard == Heard::End) return give_up("it has ended");
    if (words == kMostWords) return give_up("it talks without end");
    hear(said);
  }
}

ForkServer::State ForkServer::state() {
  look();
  return state_;
}

ForkServer::State ForkServer::wait_until_loaded(Duration limit) {
  const auto until = Steady::now() + limit;
  while (state() == State::Loading && await_words(control_.get(), -1, until)) {
  }
  return state_;
}

void ForkServer::prepare(int slot, bool with_context, int cgroup_fd) {
  // One that is still importing reads it later.
  if (state() != State::Ready && state_ != State::Loading) return;
  const auto found = waiting_.find(slot);
  if (found != waiting_.end()) {
    pollfd gone{found->second.socket.get(), 0, 0};
    // One that has joined another cgroup ends with that: it was forked for an attempt that was
    // served by exec.
    if (::poll(&gone, 1, 0) == 0 && found->second.cgroup == identity(cgroup_fd)) return;
    kill_and_reap(found->second.pidfd.get(), false);
    waiting_.erase(found);
  }
  auto pair = make_pair();
  if (!pair) return;
  const auto order = fmt::format("fork {} {}", slot, with_context ? 1 : 0);
  std::vector<int> descriptors{pair->theirs.get()};
  if (cgroup_fd >= 0) descriptors.push_back(cgroup_fd);
  if (!send_with(control_.get(), order, descriptors)) return;
  waiting_.emplace(slot, Waiting{std::move(pair->ours), identity(cgroup_fd), 0, {}});
}

Status ForkServer::wait_for_birth(Waiting& child, TimePoint until) {
  if (child.pid != 0) return {};
  std::string said;
  auto heard = Heard::Nothing;
  // The server may end meanwhile, or say that it forks none for as long as imports take.
  while ((heard = hear_packet(child.socket.get(), said)) == Heard::Nothing) {
    if (!control_) return fail(Code::Spawn, why_);
    if (imports_again_) return fail(Code::Spawn, "it is importing what a worker has");
    if (!await_words(child.socket.get(), control_.get(), until)) break;
    listen();
  }
  // A server that is killed hangs up its sockets one after the other.
  const auto soon = std::min(until, Steady::now() + kHangsUpWithin);
  if (heard == Heard::End && control_ && await_words(control_.get(), -1, soon)) listen();
  if (!control_) return fail(Code::Spawn, why_);
  auto born = hold_born(said);
  if (!born) return std::unexpected(born.error());
  child.pid = born->pid;
  child.pidfd = std::move(born->pidfd);
  return {};
}

Status ForkServer::give_order(Waiting& child, const LaunchRequest& request, TimePoint until) {
  const auto order = write_order(request);
  if (!order) return std::unexpected(order.error());
  const auto given = [](int fd, int own) { return fd >= 0 ? fd : own; };
  std::vector<int> descriptors{order->get(), given(request.stdin_fd, STDIN_FILENO),
                               given(request.stdout_fd, STDOUT_FILENO),
                               given(request.stderr_fd, STDERR_FILENO)};
  if (request.cgroup_fd >= 0) descriptors.push_back(request.cgroup_fd);
  if (!send_with(child.socket.get(), "order", descriptors)) {
    return fail(Code::Spawn, "the child takes no order");
  }
  const auto said = await_packet(child.socket.get(), until);
  if (!said) return fail(Code::Spawn, "the child was not ready in time");
  if (*said != "ok") return fail(Code::Spawn, printable(*said));
  // Before `go`, after which it runs the user's code and could not be replaced by an exec any more.
  if (!is_own_child(child.pidfd.get())) return fail(Code::Spawn, "the child is not ours");
  if (!send_with(child.socket.get(), "go", {})) return fail(Code::Spawn, "the child has ended");
  return {};
}

Result<Spawned> ForkServer::take(const LaunchRequest& request, Duration limit) {
  const auto until = Steady::now() + limit;
  if (!request.directory.empty()) return fail(Code::Spawn, "it forks in its own directory");
  if (state() == State::Loading) return fail(Code::Spawn, "it is still importing");
  prepare(request.fork_slot, false, request.cgroup_fd);
  const auto found = waiting_.find(request.fork_slot);
  if (found == waiting_.end()) return fail(Code::Spawn, why_.empty() ? "it is busy" : why_);
  Waiting child = std::move(found->second);
  waiting_.erase(found);
  auto done = wait_for_birth(child, until);
  if (done) done = give_order(child, request, until);
  if (done) return Spawned{child.pid, std::move(child.pidfd)};
  kill_and_reap(child.pidfd.get(), true);
  // Without its socket a child ends by itself; one that is not known yet, as soon as it looks.
  if (Steady::now() >= until) give_up("it did not answer in time");
  return std::unexpected(done.error());
}

std::vector<pid_t> ForkServer::processes() {
  look();
  std::vector<pid_t> pids;
  if (control_) pids.push_back(server_.pid);
  for (const auto& [slot, child] : waiting_) {
    if (child.pid != 0) pids.push_back(child.pid);
  }
  return pids;
}

}  // namespace elastrun::process

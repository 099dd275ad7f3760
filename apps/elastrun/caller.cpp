// SPDX-License-Identifier: Apache-2.0
#include "caller.hpp"

#include <array>
#include <boost/json/parse.hpp>
#include <cerrno>
#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/socket.h>
#include <utility>

namespace elastrun {
namespace {

/// Words of a command line and names of files are bytes, and need not be UTF-8.
Result<json::value> parse_request(std::string_view line) {
  json::parse_options options;
  options.allow_invalid_utf8 = true;
  json::error_code error;
  auto value = json::parse(line, error, {}, options);
  if (error) return fail(Code::Protocol, "no valid JSON: " + error.message());
  return value;
}

// What a caller may be behind: its handlers run between two reads of it.
constexpr std::size_t kBacklog = 4U << 20;
// Its handlers run before it reads again, and one that hangs must not hold the agent for ever.
constexpr int kPatienceMs = 60'000;

}  // namespace

Result<Caller> Caller::take(int descriptor) {
  int type = 0;
  socklen_t size = sizeof type;
  // Looked at first: a number that a person has typed may be any descriptor, say a file that would
  // then be written to.
  if (::getsockopt(descriptor, SOL_SOCKET, SO_TYPE, &type, &size) != 0 || type != SOCK_STREAM) {
    return fail(Code::Usage,
                fmt::format("--caller: descriptor {} is not a stream socket; the Python package "
                            "elastrun.agent gives this option, people do not",
                            descriptor));
  }
  // No process of ours is to keep it open beyond our end.
  ::fcntl(descriptor, F_SETFD, FD_CLOEXEC);
  return Caller(UniqueFd(descriptor));
}

Result<json::value> Caller::hear() {
  std::array<char, 65'536> bytes{};
  std::size_t end = std::string::npos;
  while ((end = heard_.find('\n')) == std::string::npos) {
    if (heard_.size() > kLongestLine) {
      return fail(Code::Protocol, "the caller's line is longer than 64 MiB");
    }
    pollfd readable{socket_.get(), POLLIN, 0};
    ::poll(&readable, 1, -1);  // the loop may have made the socket non-blocking
    // After poll(2) it may still have nothing (select(2), BUGS), and must not wait then.
    const auto count = ::recv(socket_.get(), bytes.data(), bytes.size(), MSG_DONTWAIT);
    if (count > 0) {
      heard_.append(bytes.data(), static_cast<std::size_t>(count));
    } else if (count == 0 || (errno != EAGAIN && errno != EINTR)) {
      return fail(Code::Closed, "the caller has gone");
    }
  }
  const auto line = heard_.substr(0, end);
  heard_.erase(0, end + 1);
  return parse_request(line);
}

bool Caller::write_some(bool waits) {
  while (!waiting_.empty()) {
    const auto count =
        // MSG_NOSIGNAL: a caller that has gone must not end the agent by SIGPIPE, whose workers
        // have to be stopped first.
        ::send(socket_.get(), waiting_.data(), waiting_.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
    if (count > 0) {
      waiting_.erase(0, static_cast<std::size_t>(count));
      continue;
    }
    if (errno == EINTR) continue;
    if (errno != EAGAIN || !waits) return errno == EAGAIN;
    pollfd writable{socket_.get(), POLLOUT, 0};
    if (::poll(&writable, 1, kPatienceMs) == 0) return false;
  }
  return true;
}

void Caller::tell(const json::value& line) {
  auto text = python_json(line) + "\n";
  // A caller that does not read costs records and not memory; tell_last() is not bounded by it, as
  // the end has to arrive.
  if (waiting_.size() + text.size() > kBacklog) {
    ++lost_;
  } else {
    waiting_ += text;
  }
  write_some(false);
}

Status Caller::tell_last(const json::value& line) {
  waiting_ += python_json(line) + "\n";
  if (write_some(true)) return {};
  return fail(Code::Closed, "the process that started this job has gone, or does not read");
}

}  // namespace elastrun

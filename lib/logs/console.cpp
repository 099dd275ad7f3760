// SPDX-License-Identifier: Apache-2.0
#include "logs/console.hpp"

#include "core/log.hpp"

#include <csignal>
#include <cstdlib>
#include <cstring>
#include <sys/ioctl.h>

namespace elastrun::logs {
namespace {

constexpr std::string_view kClearLine = "\r\x1b[K";

bool terminal_can_clear() {
  const char* term = std::getenv("TERM");
  return term != nullptr && *term != '\0' && std::strcmp(term, "dumb") != 0;
}

}  // namespace

Console::Console(boost::asio::any_io_executor executor, int out_fd, int err_fd)
    : out_(std::make_shared<Outlet>(executor, out_fd)),
      err_(std::make_shared<Outlet>(executor, err_fd)),
      one_place_(out_->same_place(*err_)),
      can_show_status_(err_->kind() == Outlet::Kind::Terminal && terminal_can_clear()) {
  // One queue for one place: otherwise a slow terminal would get halves of lines from both.
  if (one_place_) out_ = err_;
}

Console::~Console() {
  if (takes_log_lines_) log::set_writer(nullptr, nullptr);
}

void Console::take_log_lines() {
  takes_log_lines_ = true;
  log::set_writer(
      [](void* console, std::string_view line) {
        static_cast<Console*>(console)->write(Stream::Err, line);
      },
      this);
}

bool Console::shares_terminal(Stream stream) const {
  return can_show_status_ && (stream == Stream::Err || one_place_);
}

void Console::write(Stream stream, std::string_view bytes) {
  if (bytes.empty()) return;
  if (shares_terminal(stream)) {
    clear();
    outlet(stream).write(bytes);
    at_line_start_ = bytes.back() == '\n';
    draw();
  } else {
    outlet(stream).write(bytes);
  }
  if (outlet(stream).trouble() != 0) say_loss(stream);
}

void Console::say_loss(Stream stream) {
  bool& said = said_loss_[static_cast<std::size_t>(stream)];
  if (std::exchange(said, true)) return;
  const bool out = stream == Stream::Out;
  const int trouble = outlet(stream).trouble();
  const char* why = trouble == EPIPE || trouble == EIO ? "its reader has gone"
                    : trouble == ENOBUFS               ? "its reader is too slow"
                                                       : std::strerror(trouble);
  log::warning("console", "cannot write to {}: {}; output for it is dropped, the job goes on",
               out ? "stdout" : "stderr", why);
}

void Console::when_clear(Stream stream, std::function<void()> go) {
  outlet(stream).when_clear(std::move(go));
}

void Console::set_status(std::string text) {
  if (!can_show_status_ || (text == status_ && drawn_)) return;
  clear();
  status_ = std::move(text);
  draw();
}

void Console::clear() {
  if (std::exchange(drawn_, false)) err_->write(kClearLine);
}

void Console::draw() {
  if (status_.empty() || !at_line_start_ || !err_->idle()) return;
  err_->write(status_);
  drawn_ = true;
}

std::size_t Console::width() const {
  winsize size{};
  if (::ioctl(err_->fd(), TIOCGWINSZ, &size) != 0 || size.ws_col == 0) return 80;
  return size.ws_col;
}

void Console::finish(Duration patience) {
  set_status({});
  out_->finish(patience);
  if (err_ != out_) err_->finish(patience);
}

void ignore_console_signals() {
  std::signal(SIGPIPE, SIG_IGN);
  std::signal(SIGTTOU, SIG_IGN);
}

}  // namespace elastrun::logs

// SPDX-License-Identifier: Apache-2.0
#include "goodput_output.hpp"

#include "core/text.hpp"
#include "core/write_all.hpp"
#include "files/whole_file.hpp"

#include <cerrno>
#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

namespace elastrun::ctl {
namespace {

constexpr std::size_t kBatch = 64 << 10;

}  // namespace

Result<std::unique_ptr<GoodputOutput>> GoodputOutput::open(const std::string& path) {
  auto output = std::unique_ptr<GoodputOutput>(new GoodputOutput(path));
  if (path.empty()) return output;
  if (files::is_written_to(path)) {
    auto device = files::open_by_name(path, O_WRONLY);
    if (!device) return std::unexpected(device.error());
    output->device_ = std::move(*device);
    return output;
  }
  // Under another name until it is whole: an input that turns out to be wrong leaves what was
  // there.
  output->draft_.emplace(AT_FDCWD, fmt::format("{}.{}", path, random_text(8)));
  if (const int number = output->draft_->open(0666); number != 0) return output->refused(number);
  return output;
}

Status GoodputOutput::write(std::string_view bytes) {
  waiting_ += bytes;
  return waiting_.size() < kBatch ? Status() : write_out();
}

Status GoodputOutput::write_out() {
  const int fd = device_ ? device_.get() : STDOUT_FILENO;
  const int number = draft_ ? draft_->write(waiting_) : write_all(fd, waiting_);
  waiting_.clear();
  if (number != 0) return refused(number);
  return {};
}

Status GoodputOutput::finish() {
  if (const auto status = write_out(); !status || !draft_) return status;
  if (const int number = draft_->put_in_place(path_); number != 0) return refused(number);
  return {};
}

std::unexpected<Error> GoodputOutput::refused(int number) const {
  return std::unexpected(
      errno_error(Code::Io, "cannot write " + (path_.empty() ? "to stdout" : path_), number));
}

}  // namespace elastrun::ctl

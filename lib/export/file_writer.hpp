// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/error.hpp"
#include "core/lifetime.hpp"
#include "export/stream_sink.hpp"
#include "files/blocking_calls.hpp"

#include <cstdint>
#include <fcntl.h>
#include <memory>
#include <string>
#include <sys/types.h>

namespace elastrun::exporter {

/// Appends pieces to a file, by the thread for files: a file system that does not answer holds up
/// this file only.
class FileWriter final : public PieceWriter {
 public:
  struct Form {
    int flags = 0;  // as those of open_by_name(), with O_WRONLY, O_CREAT and O_APPEND
    mode_t mode = 0644;
    std::string head{};  // what comes before the first piece
    std::string tail{};  // and after the last one
    /// Pieces are lines: a torn one, of ours or of an earlier writer, is closed off before the
    /// next. One that was removed or renamed is made again, as logrotate(8) expects. Else the file
    /// is ours alone: a torn piece is cut off, and what comes after its removal is lost.
    bool lines = true;
  };
  struct File;
  /// Makes the file and writes the head. May wait for the file system, so before there is a loop
  /// use it with files::result_within. Fails with Io.
  static Result<std::shared_ptr<File>> open(const std::string& path, const Form& form);

  /// Borrows `calls`.
  FileWriter(files::BlockingCalls& calls, std::shared_ptr<File> file);
  void write(std::vector<std::string> batch, std::function<void(Written)> then) override;
  void close(std::function<void()> done) override;

 private:
  files::BlockingCalls& calls_;
  const std::shared_ptr<File> file_;  // with the thread
  Lifetime lifetime_;
};

}  // namespace elastrun::exporter

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/error.hpp"
#include "core/unique_fd.hpp"
#include "files/draft.hpp"

#include <memory>
#include <optional>
#include <string>
#include <string_view>

namespace elastrun::ctl {

/// Standard output, a device or FIFO, or a file that readers see whole or not at all: it is written
/// beside its place and put there by finish(), in which an older one is replaced.
class GoodputOutput {
 public:
  /// An empty path is standard output. Fails with Io.
  static Result<std::unique_ptr<GoodputOutput>> open(const std::string& path);

  /// Each fails with Io.
  Status write(std::string_view bytes);
  Status finish();

 private:
  explicit GoodputOutput(std::string path) : path_(std::move(path)) {}
  Status write_out();
  std::unexpected<Error> refused(int number) const;

  const std::string path_;
  UniqueFd device_;
  std::optional<files::Draft> draft_;
  std::string waiting_;
};

}  // namespace elastrun::ctl

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

namespace elastrun::files {

/// Large buffers that one thread fills and others read. They come back by themselves: fresh memory
/// for each would be mapped and faulted in, 4 KiB at a time. For all threads.
class BufferPool : public std::enable_shared_from_this<BufferPool> {
 public:
  static constexpr std::size_t kBytes = 128 << 10;  // capacity of one
  static constexpr std::size_t kKept = 16;          // unused ones; the others are freed
  using Buffer = std::shared_ptr<std::string>;

  Buffer take() {
    std::unique_ptr<std::string> buffer;
    {
      const std::lock_guard lock(mutex_);
      if (!unused_.empty()) {
        buffer = std::move(unused_.back());  // used last: it is still in a cache
        unused_.pop_back();
      }
    }
    if (!buffer) buffer = std::make_unique<std::string>();
    buffer->reserve(kBytes);
    return {buffer.release(), [home = shared_from_this()](std::string* used) {
              home->give_back(std::unique_ptr<std::string>(used));
            }};
  }

 private:
  void give_back(std::unique_ptr<std::string> buffer) {
    const std::lock_guard lock(mutex_);
    if (unused_.size() < kKept) unused_.push_back(std::move(buffer));
  }

  std::mutex mutex_;
  std::vector<std::unique_ptr<std::string>> unused_;
};

}  // namespace elastrun::files

// SPDX-License-Identifier: Apache-2.0
#include "logs/agent_log.hpp"

#include "core/log.hpp"
#include "core/spdlog.hpp"

#include <utility>

namespace elastrun::logs {

using spdlog::details::log_msg;
using spdlog::details::log_msg_buffer;
using spdlog::details::null_mutex;
using spdlog::sinks::rotating_file_sink_st;

/// Used on the loop; only what `File` holds is used by the thread.
class AgentLog::Sink final : public spdlog::sinks::base_sink<null_mutex> {
 public:
  Sink(files::BlockingCalls& calls, const std::string& path)
      : calls_(calls),
        what_(std::make_shared<const std::string>(path)),
        file_(std::make_shared<File>()) {
    set_level(spdlog::level::info);
    file_->formatter = log::make_formatter();
  }

 private:
  /// Opened by the first line.
  struct File {
    std::unique_ptr<spdlog::formatter> formatter;
    std::unique_ptr<rotating_file_sink_st> sink;
  };
  /// Counts writes on the loop's side; answers may come after the sink has gone.
  struct Count {
    int waiting = 0;
    std::uint64_t lost = 0;
    bool broken = false;
  };

  void sink_it_(const log_msg& message) override {
    if (count_->broken) return;
    // A file system that stands still must not let the agent's memory grow with every line.
    if (count_->waiting >= kMostWaiting) {
      count_->lost += 1;
      return;
    }
    if (count_->lost > 0) {
      const auto text = fmt::format("{} lines are missing here: the file did not take them in time",
                                    std::exchange(count_->lost, 0));
      enqueue(log_msg(message.logger_name, spdlog::level::warn, text));
    }
    enqueue(message);
  }
  void flush_() override {}

  void enqueue(const log_msg& message) {
    count_->waiting += 1;
    calls_.enqueue(what_,
                   [file = file_, path = what_, count = count_,
                    // A copy, since a log_msg only points to a text that ends with this call.
                    line = log_msg_buffer(message)]() -> files::BlockingCalls::Outcome {
                     return {[count, path, trouble = put(*file, *path, line)] {
                               count->waiting -= 1;
                               if (trouble.empty() || std::exchange(count->broken, true)) return;
                               log::warning("logs", "The agent's log ends: {}", trouble);
                             },
                             false};
                   });
  }

  /// On the thread. Empty, or why it did not work.
  static std::string put(File& file, const std::string& path, const log_msg& line) {
    // spdlog throws where a file cannot be opened, and nothing catches that on this thread.
    try {
      if (!file.sink) {
        file.sink = std::make_unique<rotating_file_sink_st>(path, kSize, kOlderFiles);
        file.sink->set_formatter(std::move(file.formatter));
      }
      file.sink->log(line);
      // After each line: spdlog writes through a buffer of stdio, which an agent that is killed
      // would take with it.
      file.sink->flush();
      return {};
    } catch (const std::exception& error) {
      return error.what();
    }
  }

  files::BlockingCalls& calls_;
  files::BlockingCalls::What what_;
  std::shared_ptr<File> file_;
  std::shared_ptr<Count> count_ = std::make_shared<Count>();
};

AgentLog::AgentLog(files::BlockingCalls& calls, const std::string& path)
    : sink_(std::make_shared<Sink>(calls, path)) {
  log::add_sink(sink_);
}

AgentLog::~AgentLog() {
  log::remove_sink(sink_);
}

}  // namespace elastrun::logs

// SPDX-License-Identifier: Apache-2.0
#include "export/page_sink.hpp"

#include "files/whole_file.hpp"

#include <utility>

namespace elastrun::exporter {
namespace {

// For node_exporter's textfile collector, which runs as another user.
constexpr mode_t kMode = 0644;

}  // namespace

Status PageSink::put_empty(const std::string& path, PageForm form) {
  return files::put_file(path, page_of(telemetry::Snapshot(), form), kMode);
}

PageSink::PageSink(files::BlockingCalls& calls, std::string name, std::string path, PageForm form,
                   PageOptions options)
    : MetricsSink(std::move(name)),
      calls_(calls),
      path_(std::move(path)),
      form_(form),
      options_(std::move(options)) {}

void PageSink::pull(const telemetry::Snapshot& snapshot) {
  waiting_ = page_of(snapshot, form_, options_);
  write_out();
}

void PageSink::write_out() {
  // One at a time: the page that waits is replaced by each newer one, so a slow disk costs pages
  // and not memory.
  if (writing_) return;
  if (!waiting_) {
    const auto finished = std::exchange(finished_, {});
    if (finished) finished();
    return;
  }
  writing_ = true;
  calls_.make(
      path_,
      [path = path_, text = *std::exchange(waiting_, {})] {
        return files::put_file(path, text, kMode);
      },
      [this, alive = lifetime_.token()](const Status& put) {
        if (!alive) return;
        writing_ = false;
        (put ? delivered_ : lost_) += 1;
        if (!put && trouble_.empty()) trouble_ = put.error().text;
        write_out();
      });
}

void PageSink::finish(std::function<void()> done) {
  finished_ = std::move(done);
  write_out();
}

SinkAccount PageSink::account() const {
  const std::uint64_t open = (waiting_ ? 1u : 0u) + (writing_ ? 1u : 0u);
  return {name(), delivered_, lost_ + open, trouble_, open};
}

}  // namespace elastrun::exporter

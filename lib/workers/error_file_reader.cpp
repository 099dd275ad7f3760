// SPDX-License-Identifier: Apache-2.0
#include "workers/error_file_reader.hpp"

#include "core/log.hpp"
#include "core/text.hpp"

#include <utility>

namespace elastrun::workers {

ErrorFileReader::ErrorFileReader(Clock& clock, Read read)
    : clock_(clock), read_(std::move(read)), alarm_(clock.make_alarm()) {}

void ErrorFileReader::Request::answer() {
  for (auto& one : std::exchange(then, {})) one();
}

void ErrorFileReader::look_at(std::vector<std::string> paths, std::function<void()> then) {
  // A file system that did not answer once is not waited for at the next failure; its late answer
  // ends that.
  if (paths.empty() || overdue_) return then();
  if (!read_) {
    found(paths, read_error_files(paths));
    return then();
  }
  // One question at a time, and one more for all that come meanwhile: each list names all workers
  // that have not succeeded, so the last one serves all.
  Request& request = asking_ ? next_ : now_;
  request.paths = std::move(paths);
  request.then.push_back(std::move(then));
  if (!asking_) ask(std::exchange(now_, {}));
}

void ErrorFileReader::ask(Request request) {
  now_ = std::move(request);
  asking_ = true;
  alarm_->arm(clock_.now() + kTimeLimit, [this] { give_up(); });
  const auto alive = lifetime_.token();
  read_(now_.paths, [this, alive, paths = now_.paths](Found files) {
    if (alive) found(paths, std::move(files));
  });
}

void ErrorFileReader::found(const std::vector<std::string>& paths, Found files) {
  for (std::size_t i = 0; i < paths.size() && i < files.size(); ++i) {
    if (files[i]) files_[paths[i]] = std::move(*files[i]);
  }
  alarm_->disarm();
  asking_ = overdue_ = false;
  // Both taken before anything is called: what hears the answer may ask again.
  auto done = std::exchange(now_, {});
  if (!next_.paths.empty()) ask(std::exchange(next_, {}));
  done.answer();
}

void ErrorFileReader::give_up() {
  overdue_ = true;
  log::warning("workers",
               "{} and what other workers may have left cannot be read within {}: their file "
               "system does not answer, and the job goes on without",
               now_.paths.front(), format_duration(kTimeLimit));
  auto next = std::exchange(next_, {});
  now_.answer();
  next.answer();
}

std::optional<ErrorFile> ErrorFileReader::of(const std::string& path) const {
  const auto found = files_.find(path);
  return found == files_.end() ? std::nullopt : std::optional(found->second);
}

ErrorFileReader::Found read_error_files(const std::vector<std::string>& paths) {
  ErrorFileReader::Found files;
  for (const auto& path : paths) files.push_back(read_error_file(path));
  return files;
}

ErrorFileReader::Read reader_by(files::BlockingCalls& calls) {
  return [&calls](std::vector<std::string> paths, auto then) {
    const auto read = [paths = std::move(paths)] { return read_error_files(paths); };
    calls.make("the error files of the workers", read, std::move(then));
  };
}

}  // namespace elastrun::workers

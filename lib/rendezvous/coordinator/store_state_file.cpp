// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/coordinator/store_state_file.hpp"

#include "core/codec.hpp"
#include "core/file_io.hpp"
#include "core/log.hpp"
#include "core/text.hpp"
#include "files/whole_file.hpp"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <fmt/format.h>
#include <unistd.h>
#include <utility>

namespace elastrun::rendezvous {
namespace {

// Hundreds of thousands of jobs; what is larger is another file.
constexpr std::size_t kMaxFile = 64 << 20;
constexpr auto kMode = 0600;
constexpr std::int64_t kHighest = std::int64_t{1} << 53;  // another one can always follow
constexpr auto kTimeToWrite = std::chrono::seconds(5);

Result<std::string> read_if_there(const std::string& path) {
  // ENOENT alone: a file that cannot be read for another reason must not pass for none.
  if (::access(path.c_str(), F_OK) != 0 && errno == ENOENT) return "";
  auto text = read_file(path, kMaxFile);
  if (!text) return fail(Code::Io, "cannot read " + text.error().text);
  return text;
}

}  // namespace

/// With its run id.
void members(Codec& codec, std::pair<std::string, WorldRecord>& job) {
  auto& [run_id, world] = job;
  codec("run_id", run_id);
  codec("epoch", world.id.epoch, 0, kHighest);
  codec("round", world.id.round, 0, kHighest);
  codec("nodes", world.nodes);
  codec.milliseconds("at_work_ms", world.at_work, kLongestGrace);
}

Result<std::unique_ptr<StoreStateFile>> StoreStateFile::open(boost::asio::io_context& loop,
                                                             Clock& clock, std::string path) {
  std::unique_ptr<StoreStateFile> known(new StoreStateFile(loop, clock, std::move(path)));
  if (auto read = known->read(); !read) return std::unexpected(read.error());
  return known;
}

Status StoreStateFile::read() {
  const auto text = read_if_there(path_);
  if (!text) return std::unexpected(text.error());
  if (trim(*text).empty()) return {};
  const auto parsed = parse_json(*text);
  const json::value* worlds = parsed ? find_member(*parsed, "worlds") : nullptr;
  if (worlds == nullptr || !worlds->is_array()) {
    return fail(Code::Usage,
                fmt::format("{} is not a state file of elastrunctl store; give --state another "
                            "file, or delete that one",
                            path_));
  }
  for (const json::value& each : worlds->as_array()) {
    std::pair<std::string, WorldRecord> job;
    from_json(each, job);
    // A job without a round has no world to be fenced.
    if (job.second.id.round > 0) worlds_.insert_or_assign(job.first, std::move(job.second));
  }
  return {};
}

void StoreStateFile::write(Then written) {
  json::array worlds;
  for (std::pair<std::string, WorldRecord> job : worlds_) worlds.push_back(to_json(job));
  const auto put = [path = path_,
                    text = json::serialize(json::object{{"worlds", std::move(worlds)}}) + "\n"] {
    return files::put_file(path, text, kMode);
  };
  // No job waits for a disk that is full, or does not answer.
  Write& write = writes_[++last_write_];
  write = {std::move(written), clock_.make_alarm()};
  write.limit->arm(clock_.now() + kTimeToWrite, [this, number = last_write_] {
    warn({Code::Timeout, fmt::format("{} takes nothing", path_)});
    // Once: now, or when the file has it. The thread may come back much later.
    if (const auto call = std::exchange(writes_.at(number).written, {})) call();
  });
  calls_.make(path_, put, [this, number = last_write_](const Status& done) {
    if (!done) warn(done.error());
    if (done) warned_ = false;
    const auto answered = writes_.extract(number);
    if (answered.mapped().written) answered.mapped().written();
  });
}

void StoreStateFile::warn(const Error& error) {
  if (std::exchange(warned_, true)) return;
  log::warning("rendezvous",
               "{}: jobs go on, but if this coordinator is begun again, it does not know of them",
               error.text);
}

}  // namespace elastrun::rendezvous

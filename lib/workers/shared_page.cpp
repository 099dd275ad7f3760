// SPDX-License-Identifier: Apache-2.0
#include "workers/shared_page.hpp"

#include "core/log.hpp"
#include "core/text.hpp"
#include "worker/written_page.hpp"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

namespace elastrun::workers {
namespace {

using At = worker::PageLayout;

constexpr std::string_view kMagic = "elastrun";
constexpr std::uint32_t kVersion = 1;
// A worker that writes in each reading writes all the time, and a fifth would meet it again.
constexpr int kTries = 4;

template <class T>
T at(std::string_view bytes, std::size_t offset) {
  T value{};
  std::memcpy(&value, bytes.data() + offset, sizeof value);
  return value;
}

TimePoint time_at(std::string_view bytes, std::size_t offset) {
  return TimePoint(std::chrono::nanoseconds(at<std::int64_t>(bytes, offset)));
}

std::size_t entries(std::string_view bytes) {
  // The number is the worker's word, so it counts for what the page has room for.
  const std::size_t most = (bytes.size() - At::kSeries) / At::kEntry;
  return std::min<std::size_t>(at<std::uint32_t>(bytes, At::kCount), most);
}

PageContents::Series series_of(std::string_view entry) {
  PageContents::Series series;
  series.value = at<double>(entry, At::kValue);
  series.count = at<std::uint64_t>(entry, At::kValues);
  const auto size =
      std::min<std::size_t>(at<std::uint32_t>(entry, At::kNameSize), At::kEntry - At::kName);
  const auto name = entry.substr(At::kName, size);
  const auto split = std::min(name.find('\0'), name.size());
  series.group = without_escapes(name.substr(0, split));
  if (split < name.size()) series.name = without_escapes(name.substr(split + 1));
  return series;
}

/// The locks of all parts, of which an odd one is being written.
std::vector<std::uint64_t> locks_of(std::string_view bytes) {
  std::vector<std::uint64_t> locks{at<std::uint64_t>(bytes, At::kLock)};
  for (std::size_t i = 0; i < entries(bytes); ++i) {
    locks.push_back(at<std::uint64_t>(bytes, At::kSeries + i * At::kEntry));
  }
  return locks;
}

}  // namespace

PageContents parse_page(std::string_view bytes) {
  PageContents page;
  if (bytes.size() < At::kSeries) return page;
  page.writer = static_cast<pid_t>(std::max(at<std::int32_t>(bytes, At::kWriter), 0));
  // Nothing but the time of the first step or phase tells that there was one.
  page.step_at = time_at(bytes, At::kStepAt);
  const auto step = at<std::int64_t>(bytes, At::kStep);
  if (page.step_at > TimePoint() && step >= 0) page.step = step;
  page.phase_at = time_at(bytes, At::kPhaseAt);
  const auto phase = bytes.substr(At::kPhase, At::kPhaseSize);
  page.phase = without_escapes(phase.substr(0, phase.find('\0')));
  page.looks_for_save = at<std::int64_t>(bytes, At::kLooked) > 0;
  page.importer = static_cast<pid_t>(std::max(at<std::int32_t>(bytes, At::kImported), 0));
  for (std::size_t i = 0; i < entries(bytes); ++i) {
    auto series = series_of(bytes.substr(At::kSeries + i * At::kEntry, At::kEntry));
    if (!series.name.empty() && series.count > 0) page.series.push_back(std::move(series));
  }
  return page;
}

Result<SharedPage> SharedPage::make() {
  UniqueFd file(::memfd_create("elastrun-page", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  const auto failed = [](const char* what) {
    return std::unexpected(
        errno_error(Code::Io, fmt::format("cannot make a page in memory ({})", what), errno));
  };
  if (!file) return failed("memfd_create");
  if (::ftruncate(file.get(), kSize) != 0) return failed("ftruncate");
  const auto size = static_cast<std::uint32_t>(kSize);
  std::string header(kMagic);
  header.append(reinterpret_cast<const char*>(&kVersion), sizeof kVersion);
  header.append(reinterpret_cast<const char*>(&size), sizeof size);
  if (::pwrite(file.get(), header.data(), header.size(), 0) < 0) return failed("write");
  // A page that shrinks would kill a worker that writes to it (SIGBUS); one that grows is unlimited
  // memory.
  if (::fcntl(file.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
    return failed("F_ADD_SEALS");
  }
  return SharedPage(std::move(file));
}

std::string SharedPage::path() const {
  // A file in memory has no other name. It goes with its last user, so a crash leaves nothing
  // behind.
  return fmt::format("/proc/{}/fd/{}", ::getpid(), file_.get());
}

void SharedPage::tell_save(std::int64_t step) const {
  // 0 means none, 1 means at once, so that a page begins without one.
  const std::int64_t word = step < 0 ? 1 : std::min(step, INT64_MAX - 2) + 2;
  (void)::pwrite(file_.get(), &word, sizeof word, At::kSaveAt);
}

std::string SharedPage::bytes() const {
  std::string first(kSize, '\0'), second(kSize, '\0');
  for (int i = 0; i < kTries; ++i) {
    if (::pread(file_.get(), first.data(), kSize, 0) != static_cast<ssize_t>(kSize)) return {};
    if (::pread(file_.get(), second.data(), kSize, 0) != static_cast<ssize_t>(kSize)) return {};
    // Two equal readings whose locks are even enclose no write (a seqlock): the page is whole. The
    // same locks would not do where, as on ARM64, the processor may put off what a worker in Python
    // has written before them.
    const auto locks = locks_of(first);
    const bool writing = std::ranges::any_of(locks, [](auto lock) { return lock % 2 != 0; });
    if (!writing && first == second) return first;
  }
  // A worker writes all the time, or was killed in the middle: each number by itself is whole.
  return first;
}

void SharedPage::tell_refused(std::uint64_t count) const {
  // The file has its size for good, so that this cannot fail.
  if (::pwrite(file_.get(), &count, sizeof count, At::kRefused) < 0) return;
}

SharedPages::SharedPages(const spec::JobSpec& spec)
    : wanted_(spec.worker_lib || spec.saves_when_preempted() || spec.restart_policy_auto) {}

std::string SharedPages::make(int local_rank) {
  // First: what the worker of the last attempt left must not speak for its successor.
  pages_.erase(local_rank);
  if (!wanted_) return {};
  auto page = SharedPage::make();
  if (!page) {
    // Said once: the next one would fail the same way.
    wanted_ = false;
    log::warning("page", "What workers last did cannot be read after their end: {}",
                 page.error().text);
    return {};
  }
  return pages_.emplace(local_rank, std::move(*page)).first->second.path();
}

const SharedPage* SharedPages::find(int local_rank) const {
  const auto found = pages_.find(local_rank);
  return found == pages_.end() ? nullptr : &found->second;
}

std::optional<PageContents> SharedPages::read(int local_rank) const {
  const auto* page = find(local_rank);
  return page == nullptr ? std::nullopt : std::optional(page->read());
}

std::string page_sentence(const PageContents& page, TimePoint at, std::size_t most) {
  std::string text;
  if (page.step) {
    // Nothing that a worker writes makes a time of before the machine started, or of tomorrow.
    const auto before = std::clamp(at - page.step_at, Duration::zero(), at.time_since_epoch());
    text = fmt::format("step {} ({} before)", *page.step, format_duration(before));
  }
  if (!page.phase.empty()) {
    text += fmt::format("{}in phase {}", text.empty() ? "" : ", ", page.phase);
  }
  const auto shown = std::min(most, page.series.size());
  for (std::size_t i = 0; i < shown; ++i) {
    const auto& series = page.series[i];
    const bool plain = series.group.empty() || series.group == "worker";
    text += fmt::format("{}{}{}={:.6g}", text.empty() ? "" : (i == 0 ? "; " : ", "),
                        plain ? "" : series.group + "/", series.name, series.value);
  }
  if (shown < page.series.size()) text += fmt::format(" and {} more", page.series.size() - shown);
  return text;
}

}  // namespace elastrun::workers

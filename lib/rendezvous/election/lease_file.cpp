// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/election/lease_file.hpp"

#include "core/json.hpp"
#include "core/text.hpp"
#include "core/unique_fd.hpp"
#include "files/whole_file.hpp"

#include <array>
#include <boost/crc.hpp>
#include <cerrno>
#include <chrono>
#include <fcntl.h>
#include <fmt/format.h>
#include <optional>
#include <thread>
#include <unistd.h>
#include <utility>

namespace elastrun::rendezvous {
namespace {

constexpr std::size_t kBlock = 4096;  // a page, so that few writes are seen half done
constexpr std::size_t kMaxLeaseFile = 128 << 10;
constexpr int kLooks = 5;
constexpr auto kBetweenLooks = std::chrono::milliseconds(2);

struct Stored {
  LeaseRecord record;
  std::int64_t version = 0;
  std::size_t slot_size = 0;
};

// Who held the lock of another file than this one may have written what this machine remembers: NFS
// looks at times of modification alone, which two writes may share.
enum class Cached { Yes, No };

Result<std::string> read_text(const std::string& path, Cached cached) {
  const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd && errno == ENOENT) return "";
  if (!fd)
    return std::unexpected(errno_error(Code::Io, fmt::format("cannot read {}", path), errno));
  if (cached == Cached::No) ::posix_fadvise(fd.get(), 0, 0, POSIX_FADV_DONTNEED);
  std::string text;
  std::array<char, 2 * kBlock> buffer;
  for (ssize_t got = 1; got > 0 && text.size() <= kMaxLeaseFile;) {
    got = ::read(fd.get(), buffer.data(), buffer.size());
    if (got < 0)
      return std::unexpected(errno_error(Code::Io, fmt::format("cannot read {}", path), errno));
    text.append(buffer.data(), static_cast<std::size_t>(got));
  }
  return text;
}

std::string checksum(const json::object& fields) {
  const std::string text = json::serialize(fields);
  boost::crc_32_type crc;
  crc.process_bytes(text.data(), text.size());
  return fmt::format("{:08x}", crc.checksum());
}

Stored stored_of(const json::value& parsed, std::size_t slot_size) {
  return {{member_text_or(parsed, "value", ""), member_int_or(parsed, "epoch", 0),
           member_int_or(parsed, "heartbeat", 0),
           static_cast<double>(member_int_or(parsed, "renewed", 0)),
           member_text_or(parsed, "record", "")},
          member_int_or(parsed, "version", 0),
          slot_size};
}

std::optional<Stored> parse_slot(std::string_view slot) {
  auto parsed = parse_json(trim(slot));
  if (!parsed || !parsed->is_object()) return std::nullopt;
  const std::string sum = member_text_or(*parsed, "sum", "");
  // "sum" is the last member: erase() fills a gap with the last one, and the checksum depends on
  // the order.
  parsed->as_object().erase("sum");
  if (sum != checksum(parsed->as_object())) return std::nullopt;
  return stored_of(*parsed, slot.size());
}

std::optional<Stored> parse_slots(std::string_view text) {
  if (text.size() % (2 * kBlock) != 0) return std::nullopt;
  auto first = parse_slot(text.substr(0, text.size() / 2));
  auto second = parse_slot(text.substr(text.size() / 2));
  // A reader without the lock may find one slot half written; the other one is whole then.
  if (!first || (second && second->version > first->version)) return second;
  return first;
}

Result<Stored> read_stored(const std::string& path, Cached cached) {
  for (int look = 1;; ++look) {
    const auto text = read_text(path, cached);
    if (!text) return std::unexpected(text.error());
    if (trim(*text).empty()) return Stored{};
    if (auto slots = parse_slots(*text)) return *std::move(slots);
    // Each slot begins so. Any other file is a user's, which a leader must not overwrite.
    if (!text->starts_with(R"({"value":)")) {
      return fail(Code::Usage, fmt::format("{} is not a rendezvous file; give --rdzv-endpoint a "
                                           "directory or another file",
                                           path));
    }
    if (look == kLooks) {
      return fail(Code::Io, fmt::format("{} is damaged; if that lasts, end the agents of this job "
                                        "and delete it",
                                        path));
    }
    // Both were written while this was read.
    std::this_thread::sleep_for(kBetweenLooks);
  }
}

std::string encode_slot(const LeaseRecord& record, std::int64_t version) {
  json::object fields{
      {"value", record.value},         {"epoch", record.epoch},
      {"heartbeat", record.heartbeat}, {"renewed", static_cast<std::int64_t>(record.renewed)},
      {"record", record.record},       {"version", version}};
  fields["sum"] = checksum(fields);
  return json::serialize(fields);
}

// The number of an error, 0 if there is none.
int write_at(int fd, std::string_view text, std::size_t offset) {
  const ssize_t got = ::pwrite(fd, text.data(), text.size(), static_cast<off_t>(offset));
  if (got < 0) return errno;
  // A short write to a regular file: there was no more room.
  if (got < static_cast<ssize_t>(text.size())) return ENOSPC;
  // Other machines must see the renewal, and a network file system reports a failed write only
  // here.
  return ::fsync(fd) == 0 ? 0 : errno;
}

}  // namespace

Result<LeaseRecord> LeaseFile::read() const {
  auto stored = read_stored(path_, Cached::Yes);
  if (!stored) return std::unexpected(stored.error());
  return std::move(stored->record);
}

Result<LeaseRecord> LeaseFile::read_locked() {
  auto stored = read_stored(path_, Cached::No);
  if (!stored) return std::unexpected(stored.error());
  version_ = stored->version;
  slot_size_ = stored->slot_size;
  return std::move(stored->record);
}

Status LeaseFile::write(const LeaseRecord& record) {
  std::string slot = encode_slot(record, ++version_);
  const std::size_t least = (slot.size() / kBlock + 1) * kBlock;
  // In place, over blocks that the file has already: a full disk or a quota must not end a lease.
  const bool fits = least <= slot_size_;
  // Of the size of the slot that it covers, or the rest of that would follow it.
  slot.resize(fits ? slot_size_ - 1 : least - 1, ' ');
  slot += '\n';
  return fits ? write_in_place(slot) : replace(slot);
}

Status LeaseFile::failed(int number) {
  full_ = number == ENOSPC || number == EDQUOT;
  if (number == 0) return {};
  return std::unexpected(errno_error(Code::Io, fmt::format("cannot write {}", path_), number));
}

Status LeaseFile::write_in_place(const std::string& slot) {
  const auto fd = files::open_by_name(path_, O_WRONLY);
  if (!fd) return failed(errno);
  // In turn, so that a writer that dies in the middle leaves the other slot whole.
  return failed(write_at(fd->get(), slot, version_ % 2 == 0 ? 0 : slot.size()));
}

Status LeaseFile::replace(const std::string& slot) {
  const std::string draft = fmt::format("{}.{}", path_, random_text(8));
  const UniqueFd fd(::open(draft.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
  // Both slots the same: the next write, in place, may then take either one.
  int number = fd ? write_at(fd.get(), slot + slot, 0) : errno;
  if (number == 0 && ::rename(draft.c_str(), path_.c_str()) != 0) number = errno;
  if (fd && number != 0) ::unlink(draft.c_str());
  if (number == 0) slot_size_ = slot.size();
  return failed(number);
}

}  // namespace elastrun::rendezvous

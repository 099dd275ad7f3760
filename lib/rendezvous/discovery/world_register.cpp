// SPDX-License-Identifier: Apache-2.0

#include "rendezvous/discovery/world_register.hpp"

#include "core/file_io.hpp"
#include "core/text.hpp"
#include "core/unique_fd.hpp"
#include "net/endpoint.hpp"

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <fmt/format.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>
#include <utility>

namespace elastrun::rendezvous {
namespace {

constexpr auto kBetweenProbes = std::chrono::seconds(2);

/// Binds to that port of all addresses, for a moment, and without SO_REUSEADDR: with it a port that
/// is held but not listened on would look free (socket(7)). One that was used until a minute ago
/// may still look held, which only costs time.
bool can_bind(const sockaddr* address, socklen_t size) {
  const UniqueFd fd(::socket(address->sa_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  return fd && ::bind(fd.get(), address, size) == 0;
}

bool is_free(std::uint16_t port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  if (!can_bind(reinterpret_cast<const sockaddr*>(&address), sizeof address)) return false;
  sockaddr_in6 address6{};
  address6.sin6_family = AF_INET6;
  address6.sin6_port = htons(port);
  if (can_bind(reinterpret_cast<const sockaddr*>(&address6), sizeof address6)) return true;
  return errno == EAFNOSUPPORT || errno == EADDRNOTAVAIL;  // a machine without IPv6
}

}  // namespace

PreviousWorldProbe::PreviousWorldProbe(Clock& clock) : clock_(clock), again_(clock.make_alarm()) {}

void PreviousWorldProbe::probe(const RecordedWorld& recorded, Then gone) {
  stop();
  const auto address = net::parse_address(recorded.world.address);
  const bool here =
      recorded.network == own_network() && (address.is_loopback() || net::is_own_address(address));
  if (!here || address.is_unspecified() || recorded.world.port == 0) return;
  port_ = recorded.world.port;
  gone_ = std::move(gone);
  // Not inside this call.
  again_->arm(clock_.now(), [this] { look(); });
}

void PreviousWorldProbe::stop() {
  again_->disarm();
  gone_ = nullptr;
}

void PreviousWorldProbe::look() {
  if (!is_free(port_)) {
    again_->arm(clock_.now() + kBetweenProbes, [this] { look(); });
  } else if (const auto gone = std::exchange(gone_, {})) {
    gone();
  }
}

std::string PreviousWorldProbe::own_network() {
  // The number of a network namespace alone repeats on other machines, and here after the next
  // boot.
  const auto id = read_kernel_file("/proc/sys/kernel/random/boot_id");
  const auto boot = trim(id);
  std::array<char, 64> space{};
  const ssize_t size = ::readlink("/proc/self/ns/net", space.data(), space.size());
  return fmt::format("{} {}", boot,
                     std::string_view(space.data(), static_cast<std::size_t>(size < 0 ? 0 : size)));
}

namespace {

// Within it most worlds that break up are replaced by the next one, which is recorded anyway.
constexpr auto kBreakUp = std::chrono::milliseconds(500);

BreakUp record_of(const Survivors& survivors, bool left, TimePoint now) {
  const StoppingGroups& at_work = survivors.at_work;
  // As time that is left, not as a date: clocks of machines differ.
  return {survivors.members, at_work.count,
          at_work.count > 0 ? std::max<Duration>(at_work.until - now, {}) : Duration{}, left};
}

// Of the unheard members of a world that has ended. They may be cut off and saving, unless they are
// on this machine: there a member notices at once, and comes.
Duration time_to_end(const WorldRecord& world, Duration isolation) {
  if (world.local) return kTimeToFollow;
  return world.at_work > Duration::zero() ? world.at_work : isolation;
}

std::pair<int, int> counts_of(const Survivors& survivors) {
  return {survivors.members, survivors.at_work.count};
}

}  // namespace

WorldRegister::WorldRegister(Clock& clock)
    : clock_(clock), nonce_(random_text(16)), probe_(clock), look_(clock.make_alarm()) {}

void WorldRegister::record(const WorldRecord& world, Then recorded) {
  // Assigned as a whole, so that verdict and break-up of the world before do not stay beside it.
  latest_ = {world, nonce_, PreviousWorldProbe::own_network()};
  recorded_ = std::move(recorded);
  tells_of_end_ = false;
}

void WorldRegister::recorded() {
  if (const auto recorded = std::exchange(recorded_, {})) recorded();
}

void WorldRegister::conclude(const Done& verdict) {
  recorded_ = nullptr;
  latest_.by = nonce_;
  latest_.network = PreviousWorldProbe::own_network();
  latest_.verdict = verdict;
}

void WorldRegister::leave(const Survivors& survivors) {
  recorded_ = nullptr;
  latest_.break_up = record_of(survivors, true, clock_.now());
}

// Who decides would form the next world now, as far as those go who are not there.
std::optional<Survivors> WorldRegister::survivors_of(const Coordinator& coordinator) const {
  if (latest_.verdict || !coordinator.is_needed() || coordinator.is_fenced()) return std::nullopt;
  const Survivors survivors = coordinator.survivors();
  return survivors.world == latest_.world.id ? std::optional(survivors) : std::nullopt;
}

void WorldRegister::watch_survivors(const Coordinator& coordinator, Then write) {
  // One look at a time: a world that breaks up tells of each member that goes, and each record is a
  // write to the register.
  if (!has_any() || std::exchange(looks_, true)) return;
  look_->arm(clock_.now() + kBreakUp, [this, &coordinator, write = std::move(write)] {
    looks_ = false;
    const auto survivors = survivors_of(coordinator);
    // Only where a successor would decide otherwise by it: etcd keeps a revision of every write
    // until it is compacted.
    if (survivors && counts_of(*survivors) != recorded_survivors_) write();
    // Members that were lost are waited for: no message tells when that is over.
    const bool ended = survivors && survivors->at_work.count == 0;
    if (coordinator.is_needed() && !ended) watch_survivors(coordinator, write);
  });
}

std::string WorldRegister::text(const Coordinator& coordinator) {
  const TimePoint now = clock_.now();
  const StoppingGroups stopping = coordinator.stopping_groups();
  RecordedWorld recorded = latest_;
  const auto survivors = survivors_of(coordinator);
  recorded_survivors_ = survivors.transform(counts_of);
  if (survivors && !latest_.break_up) recorded.break_up = record_of(*survivors, false, now);
  if (stopping.are_at_work(now)) {
    recorded.leavers = stopping.count;
    recorded.leaving = stopping.until - now;
  }
  return encode_record(recorded);
}

void WorldRegister::inherit(const std::string& record, Coordinator& coordinator,
                            Duration isolation) {
  // A world of ours, from when we were elected before, is not the last one any more.
  latest_ = {};
  inherited_ = record;
  const auto recorded = decode_record(record);
  tells_of_end_ = recorded && recorded->verdict;
  if (!recorded) return;
  const TimePoint now = clock_.now();
  const StoppingGroups stopping{recorded->leavers, now + recorded->leaving};
  if (recorded->verdict) {
    if (stopping.count > 0) coordinator.inherit(recorded->world, now, stopping);
    return coordinator.conclude(recorded->world.id, *recorded->verdict);
  }
  if (const auto& broken = recorded->break_up) {
    const Survivors survivors{broken->members, {broken->stopping, now + broken->stopping_for}};
    const PreviousWorld previous{recorded->world.id, 0, recorded->world.nodes};
    // A leader that left has counted itself out; one that died took its own node along, as a rule.
    return coordinator.inherit_survivors(previous, survivors, broken->left ? 0 : 1, stopping);
  }
  coordinator.inherit(recorded->world, now + isolation, stopping);
  // On the leader's machine a free port proves the end. From elsewhere only a member or
  // isolation_timeout does: a firewall refuses connections just as a dead host.
  probe_.probe(*recorded, [&coordinator, left = time_to_end(recorded->world, isolation)] {
    coordinator.disinherit(left);
  });
}

bool WorldRegister::is_strange(const std::string& record) const {
  const auto recorded = decode_record(record);
  // What this leader inherited is another one's record, but no news.
  return recorded && recorded->by != nonce_ && record != inherited_;
}

void WorldRegister::stop() {
  recorded_ = nullptr;
  look_->disarm();
  looks_ = false;
  probe_.stop();
}

}  // namespace elastrun::rendezvous

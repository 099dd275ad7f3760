// SPDX-License-Identifier: Apache-2.0
// The half of Table that is about peers: waits, barriers, watches and their end.
#include "store/table_parts.hpp"

#include <limits>

namespace elastrun::store {

/// The key of this link has come. Ends its wait when that was the last; the link is gone then.
void Table::satisfied(Link& link) {
  // Even where others of the wait are missing: cancel() must not look for it in the list.
  link.entry = nullptr;
  Wait& wait = *link.wait;
  if (--wait.missing > 0) return;
  // First: end() destroys the wait.
  notices_.push_back({wait.peer, nullptr});
  end(wait);
}

void Table::end(Wait& wait) {
  const auto found = interests_.find(wait.peer);
  auto& waits = found->second->waits;
  std::erase_if(waits, [&wait](const auto& other) { return other.get() == &wait; });
  if (found->second->empty()) interests_.erase(found);
}

void Table::wake_all(Extra& extra) {
  Link* link = std::exchange(extra.first, nullptr);
  extra.last = nullptr;
  // A wait has one link per key, so what satisfied() destroys is never the next of this list.
  while (link != nullptr) satisfied(*std::exchange(link, link->next));
}

void Table::wake_first(Extra& extra) {
  Link* link = extra.first;
  if (link == nullptr) return;
  extra.remove(*link);
  satisfied(*link);
}

Table::Interests& Table::interests_of(Peer peer) {
  auto& interests = interests_[peer];
  if (!interests) interests = std::make_unique<Interests>();
  return *interests;
}

bool Table::wait(Peer peer, std::span<const std::string_view> keys) {
  const auto missing =
      std::count_if(keys.begin(), keys.end(), [this](auto key) { return !present(key); });
  if (missing == 0) return true;
  auto& interests = interests_of(peer);
  interests.waits.push_back(std::make_unique<Wait>());
  Wait& wait = *interests.waits.back();
  wait.peer = peer;
  // Reserved, because the lists of the keys hold pointers to these links.
  wait.links.reserve(static_cast<std::size_t>(missing));
  for (const auto key : keys) {
    if (present(key)) continue;
    Entry& entry = touch(key);
    Extra& waiters = extra(entry);
    // The same key again: this very wait is then the last in the list.
    if (waiters.last != nullptr && waiters.last->wait == &wait) continue;
    waiters.add(wait.links.emplace_back(Link{nullptr, nullptr, &entry, &wait}));
  }
  wait.missing = wait.links.size();
  return false;
}

/// Releases all once the number that one of them waits for is reached, by whichever call: a barrier
/// that is complete is complete for all, whatever size each named, as with torch.
void Table::release(Entry& entry) {
  Extra& extra = *entry.second.extra;
  if (extra.arrivals.empty()) return;
  const auto number = parse_counter(entry.second.value.view());
  if (!number) return;
  const auto arrived = wrapping_subtract(*number, extra.base);
  const auto reached = [arrived](const auto& one) { return one.wanted <= arrived; };
  if (std::none_of(extra.arrivals.begin(), extra.arrivals.end(), reached)) return;
  for (const auto& one : std::exchange(extra.arrivals, {})) {
    notices_.push_back({one.peer, nullptr});
    const auto found = interests_.find(one.peer);
    auto& mine = found->second->arrivals;
    mine.erase(std::find(mine.begin(), mine.end(), &entry));
    if (found->second->empty()) interests_.erase(found);
  }
  // The next barrier at this key counts from here.
  extra.base = *number;
}

Table::Arrival Table::arrive(Peer peer, std::string_view key, std::int64_t wanted) {
  const Slot* old = find(key);
  const bool created = old == nullptr || !old->present;
  const auto before = created ? 0 : parse_counter(old->value.view());
  if (!before) return Arrival::NoNumber;
  Entry& entry = touch(key);
  Extra& barrier = extra(entry);
  const auto number = wrapping_add(*before, 1);
  std::string old_text;
  if (watched(entry)) old_text = entry.second.value.view();
  store_number(entry, number);
  if (wanted > 0 && wrapping_subtract(number, barrier.base) < wanted) {
    barrier.arrivals.push_back({peer, wanted, true});
    interests_of(peer).arrivals.push_back(&entry);
    // Plain waiters of the key learn of the complete barrier, not of the first arrival.
    values_ += created ? 1 : 0;
    entry.second.present = true;
    if (watched(entry)) {
      tell(entry, created ? ChangeKind::Created : ChangeKind::Updated, old_text,
           std::to_string(number));
    }
    return Arrival::Waiting;
  }
  if (barrier.arrivals.empty()) barrier.base = number;
  // So that stored() releases all of them, whatever number each has named.
  for (auto& one : barrier.arrivals) one.wanted = std::numeric_limits<std::int64_t>::min();
  stored(entry, created, std::move(old_text));
  return Arrival::Complete;
}

/// One arrival of this peer did not happen after all.
void Table::take_back(Peer peer, Entry& entry) {
  Slot& slot = entry.second;
  auto& arrivals = slot.extra->arrivals;
  const auto mine = std::find_if(arrivals.begin(), arrivals.end(),
                                 [peer](const auto& one) { return one.peer == peer; });
  const bool counted = mine->counted;
  arrivals.erase(mine);
  // A key that was erased or set since has forgotten this arrival already.
  if (counted && slot.present) {
    if (const auto number = parse_counter(slot.value.view())) {
      store_number(entry, wrapping_subtract(*number, 1));
    }
  }
  tidy(entry);
}

void Table::cancel(Peer peer) {
  const auto found = interests_.find(peer);
  if (found == interests_.end()) return;
  Interests& mine = *found->second;
  for (const auto& wait : mine.waits) {
    for (Link& link : wait->links) {
      // This key has come already, so its list no longer holds the link.
      if (link.entry == nullptr) continue;
      link.entry->second.extra->remove(link);
      tidy(*link.entry);
    }
  }
  mine.waits.clear();
  for (Entry* entry : std::exchange(mine.arrivals, {})) take_back(peer, *entry);
  if (mine.empty()) interests_.erase(found);
}

void Table::watch(Peer peer, std::string_view key) {
  Entry& entry = touch(key);
  auto& watchers = extra(entry).watchers;
  if (std::find(watchers.begin(), watchers.end(), peer) != watchers.end()) return;
  watchers.push_back(peer);
  interests_of(peer).watches.push_back(&entry);
}

void Table::forget(Peer peer) {
  cancel(peer);
  const auto found = interests_.find(peer);
  if (found == interests_.end()) return;
  for (Entry* entry : found->second->watches) {
    std::erase(entry->second.extra->watchers, peer);
    tidy(*entry);
  }
  interests_.erase(found);
}

}  // namespace elastrun::store

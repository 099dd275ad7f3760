// SPDX-License-Identifier: Apache-2.0

#include "store/table.hpp"

#include <array>
#include <functional>
#include <limits>
#include <utility>

namespace elastrun::store {

void Value::assign(std::string_view bytes) {
  if (bytes.size() >= kShareFrom) {
    large_ = std::make_shared<std::string>(bytes);
    std::string().swap(small_);  // {} would be empty and keep its memory
  } else {
    small_.assign(bytes);
    large_.reset();
  }
}

void Value::append(std::string_view bytes) {
  if (!large_ && small_.size() + bytes.size() < kShareFrom) {
    small_.append(bytes);
    return;
  }
  // Answers on their way may share the old bytes, so those are left as they are.
  if (!large_ || large_.use_count() > 1) large_ = std::make_shared<std::string>(view());
  large_->append(bytes);
  std::string().swap(small_);
}

Table::Slot* Table::find(std::string_view key) const {
  const auto found = slots_.find(key);
  return found == slots_.end() ? nullptr : const_cast<Slot*>(&found->second);
}

Table::Entry& Table::touch(std::string_view key) {
  const auto found = slots_.find(key);
  // Not emplace alone, which makes a string and a node for each request of a key that is there.
  if (found != slots_.end()) return *found;
  return *slots_.emplace(std::string(key), Slot{}).first;
}

Table::Extra& Table::extra(Entry& entry) {
  if (!entry.second.extra) entry.second.extra = std::make_unique<Extra>();
  return *entry.second.extra;
}

/// Gives back what the key no longer needs; the entry may be gone afterwards.
void Table::tidy(Entry& entry) {
  Slot& slot = entry.second;
  if (slot.extra && slot.extra->empty()) slot.extra.reset();
  // By its place: a key that is part of the entry would be read while it is destroyed.
  if (!slot.present && !slot.extra) slots_.erase(slots_.find(entry.first));
}

bool Table::watched(const Entry& entry) const {
  return entry.second.extra && !entry.second.extra->watchers.empty();
}

void Table::tell(Entry& entry, ChangeKind kind, std::string before, std::string_view after) {
  const auto change = std::make_shared<const Change>(
      Change{kind, entry.first, std::move(before), std::string(after)});
  for (const Peer peer : entry.second.extra->watchers) notices_.push_back({peer, change});
}

/// Everybody who looked forward to a value of this key learns of it.
void Table::stored(Entry& entry, bool created, std::string before) {
  Slot& slot = entry.second;
  slot.present = true;
  values_ += created ? 1 : 0;
  if (!slot.extra) return;
  if (watched(entry)) {
    const auto kind = created ? ChangeKind::Created : ChangeKind::Updated;
    tell(entry, kind, std::move(before), slot.value.view());
  }
  wake_all(*slot.extra);
  release(entry);
  tidy(entry);
}

void Table::set(std::string_view key, std::string_view value) {
  Entry& entry = touch(key);
  Slot& slot = entry.second;
  std::string before;
  if (slot.extra) {
    if (watched(entry)) before = slot.value.view();
    slot.extra->base = 0;  // setting a barrier's number restarts it
    for (auto& arrived : slot.extra->arrivals) arrived.counted = false;
  }
  slot.value.assign(value);
  stored(entry, !slot.present, std::move(before));
}

const Value* Table::get(std::string_view key) const {
  const Slot* slot = find(key);
  return slot != nullptr && slot->present ? &slot->value : nullptr;
}

void Table::store_number(Entry& entry, std::int64_t number) {
  std::array<char, 24> text{};
  const auto end = std::to_chars(text.data(), text.data() + text.size(), number).ptr;
  entry.second.value.assign({text.data(), static_cast<std::size_t>(end - text.data())});
}

std::optional<std::int64_t> Table::add(std::string_view key, std::int64_t delta) {
  const Slot* old = find(key);
  const bool created = old == nullptr || !old->present;
  const auto number = created ? 0 : parse_counter(old->value.view());
  if (!number) return std::nullopt;
  // Not before: a refused ADD leaves no entry behind.
  Entry& entry = touch(key);
  std::string before;
  if (watched(entry)) before = entry.second.value.view();
  // Wraps, as torch's counters do; a signed overflow would be undefined here.
  const auto sum = wrapping_add(*number, delta);
  store_number(entry, sum);
  stored(entry, created, std::move(before));
  return sum;
}

void Table::append(std::string_view key, std::string_view bytes) {
  Entry& entry = touch(key);
  std::string before;
  if (watched(entry)) before = entry.second.value.view();
  entry.second.value.append(bytes);
  stored(entry, !entry.second.present, std::move(before));
}

const Value* Table::compare_set(std::string_view key, std::string_view expected,
                                std::string_view desired) {
  const Value* now = get(key);
  // As torch: an empty `expected` means that the key must not be there.
  const bool stores = now == nullptr ? expected.empty() : now->view() == expected;
  if (!stores) return now;
  set(key, desired);
  return get(key);
}

bool Table::erase(std::string_view key) {
  const auto found = slots_.find(key);
  if (found == slots_.end() || !found->second.present) return false;
  Entry& entry = *found;
  Slot& slot = entry.second;
  // Before the value goes, because watchers are told what it was.
  if (watched(entry)) tell(entry, ChangeKind::Deleted, std::string(slot.value.view()), {});
  slot.present = false;
  // Now, not with the entry: what waits for the key may keep that for long.
  (void)std::exchange(slot.value, {});
  --values_;
  if (slot.extra) {
    slot.extra->base = 0;
    for (auto& arrived : slot.extra->arrivals) arrived.counted = false;
  }
  tidy(entry);
  return true;
}

bool Table::present(std::string_view key) const {
  const Slot* slot = find(key);
  // Clients wait for the key before they pop, so a queue with something in it counts as there.
  return slot != nullptr && (slot->present || (slot->extra && !slot->extra->queue.empty()));
}

std::vector<std::string_view> Table::keys() const {
  std::vector<std::string_view> names;
  names.reserve(values_);
  for (const auto& [name, slot] : slots_) {
    if (slot.present) names.emplace_back(name);
  }
  return names;
}

void Table::queue_push(std::string_view key, std::string_view value) {
  Entry& entry = touch(key);
  extra(entry).queue.emplace_back(value);
  // One value serves one waiter; the others would find the queue empty.
  wake_first(*entry.second.extra);
}

std::optional<Value> Table::queue_pop(std::string_view key) {
  const auto found = slots_.find(key);
  if (found == slots_.end() || !found->second.extra) return std::nullopt;
  auto& queue = found->second.extra->queue;
  if (queue.empty()) return std::nullopt;
  Value value = std::move(queue.front());
  queue.pop_front();
  tidy(*found);
  return value;
}

std::size_t Table::queue_size(std::string_view key) const {
  const Slot* slot = find(key);
  return slot != nullptr && slot->extra ? slot->extra->queue.size() : 0;
}

// The half of Table that is about peers: waits, barriers, watches and their end.

/// The key of this link has come. Ends its wait when that was the last; the link is gone then.
void Table::satisfied(Link& link) {
  // Even where others of the wait are missing: cancel() must not look for it in the list.
  link.entry = nullptr;
  link.unlink();
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
  auto woken = std::move(extra.waiters);
  // A wait has one link per key, so what satisfied() destroys is never another one of this list.
  while (!woken.empty()) satisfied(woken.front());
}

void Table::wake_first(Extra& extra) {
  if (!extra.waiters.empty()) satisfied(extra.waiters.front());
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
    auto& waiters = extra(entry).waiters;
    // The same key again: this very wait is then the last in the list.
    if (!waiters.empty() && waiters.back().wait == &wait) continue;
    waiters.push_back(wait.links.emplace_back(&entry, &wait));
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
      link.unlink();
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

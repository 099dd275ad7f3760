// SPDX-License-Identifier: Apache-2.0

#include "store/table.hpp"

#include <array>
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

/// Gives back what the key no longer needs; the entry may be gone afterwards.
void Table::tidy(Entry& entry) {
  Slot& slot = entry.second;
  if (slot.extra && slot.extra->empty()) slot.extra.reset();
  // By its place: a key that is part of the entry would be read while it is destroyed.
  if (!slot.present && !slot.extra) slots_.erase(slots_.find(entry.first));
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
  wake(*slot.extra, true);
  release(entry);
  tidy(entry);
}

void Table::set(std::string_view key, std::string_view value) {
  Entry& entry = touch(key);
  Slot& slot = entry.second;
  std::string before;
  if (slot.extra) {
    if (watched(entry)) before = slot.value.view();
    slot.extra->restart();
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
  if (slot.extra) slot.extra->restart();
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
  wake(*entry.second.extra, false);
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

/// Ends waits for this key: the first, or all.
void Table::wake(Extra& extra, bool all) {
  // A wait has one link per key, so what satisfied() destroys is never another one of this list.
  for (auto next = extra.waiters.begin(); next != extra.waiters.end();) {
    Link& link = *next++;
    if (link.wanted) continue;
    satisfied(link);
    if (!all) return;
  }
}

Table::Wait& Table::begin_wait(Peer peer, std::size_t most) {
  auto& waits = interests_of(peer).waits;
  waits.push_back(std::make_unique<Wait>(peer));
  // Reserved, because the lists of the keys hold pointers to these links.
  waits.back()->links.reserve(most);
  return *waits.back();
}

bool Table::wait(Peer peer, std::span<const std::string_view> keys) {
  const auto missing =
      std::count_if(keys.begin(), keys.end(), [this](auto key) { return !present(key); });
  if (missing == 0) return true;
  Wait& wait = begin_wait(peer, static_cast<std::size_t>(missing));
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
  auto& [waiters, queue, base, watchers] = *entry.second.extra;
  const auto number = parse_counter(entry.second.value.view());
  if (waiters.empty() || !number) return;
  const auto arrived = wrapping_subtract(*number, base);
  // Who waits for the key alone has been woken.
  if (std::ranges::none_of(waiters, [&](const Link& one) { return *one.wanted <= arrived; }))
    return;
  while (!waiters.empty()) satisfied(waiters.front());
  // The next barrier at this key counts from here.
  base = *number;
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
    Wait& wait = begin_wait(peer, 1);
    barrier.waiters.push_back(wait.links.emplace_back(&entry, &wait, wanted));
    wait.missing = 1;
    // Plain waiters of the key learn of the complete barrier, not of the first arrival.
    values_ += created ? 1 : 0;
    entry.second.present = true;
    if (watched(entry)) {
      tell(entry, created ? ChangeKind::Created : ChangeKind::Updated, old_text,
           std::to_string(number));
    }
    return Arrival::Waiting;
  }
  // So that stored() releases all of them, whatever number each has named.
  bool is_alone = true;
  for (Link& one : barrier.waiters) {
    if (!one.wanted) continue;
    one.wanted = std::numeric_limits<std::int64_t>::min();
    is_alone = false;
  }
  if (is_alone) barrier.base = number;
  stored(entry, created, std::move(old_text));
  return Arrival::Complete;
}

void Table::cancel(Peer peer) {
  const auto found = interests_.find(peer);
  if (found == interests_.end()) return;
  Interests& mine = *found->second;
  for (const auto& wait : mine.waits) {
    for (Link& link : wait->links) {
      // This key has come already, so its list no longer holds the link.
      if (link.entry == nullptr) continue;
      Entry& entry = *link.entry;
      link.unlink();
      // It has not arrived after all; a key that was erased or set since has forgotten that
      // already.
      if (link.wanted && link.counted && entry.second.present) {
        const auto number = parse_counter(entry.second.value.view());
        if (number) store_number(entry, wrapping_subtract(*number, 1));
      }
      tidy(entry);
    }
  }
  mine.waits.clear();
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

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/clock.hpp"
#include "core/json.hpp"

#include <array>
#include <boost/describe/members.hpp>
#include <boost/mp11/algorithm.hpp>
#include <concepts>
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

/// One codec for the JSON objects that elastrun writes and reads.
namespace elastrun {

/// The text as it travels: without_controls(), of at most `longest` bytes, and twice that as JSON
/// writes it, cut between characters.
std::string fit_text(std::string_view text, std::size_t longest);

/// Writes the members of an object, or reads them. A type says once, for both ways, which it has:
///
///     void members(Codec& codec, NodeMark& mark) {
///       codec("place", mark.place, 200);
///       if (codec.has("why", !mark.why.empty())) codec("why", mark.why);
///     }
///
/// or is described (Boost.Describe), if its members have the names that are written.
///
/// A reader takes nothing on trust. A missing member keeps its default. One of another kind keeps
/// it as well, a number out of range becomes the nearest one in range, a list ends after the most;
/// the name of the first such member is noted, for those who refuse the whole. Unknown members are
/// ignored. Texts come out as a terminal may show them, so that no later place has to look.
class Codec {
 public:
  static constexpr std::int64_t kMostCounted = 100'000'000;
  static constexpr std::size_t kLongestText = 2 << 10;
  /// Of a node or a host: of an id, which is "ADDRESS_PID_NUMBER", or of a name in the DNS.
  static constexpr std::size_t kLongestName = 300;
  static constexpr double kYear = 366.0 * 86400;
  /// Texts that are sentences or names; or paths and the like, which any byte may be part of.
  enum class Texts { Shown, Whole };

  /// Writes.
  explicit Codec(Texts texts = Texts::Shown) : texts_(texts) {}
  /// Reads `from`, which must outlive the codec, as must `unsound`: the name of the first member
  /// that cannot be what it has to be, empty as long as there is none.
  Codec(const json::value& from, std::string& unsound, Texts texts = Texts::Shown);

  bool reads() const { return from_ != nullptr; }
  /// Whether a member is to be passed on: of a writer `is_set`, of a reader that it is there.
  bool has(std::string_view name, bool is_set) const {
    return reads() ? find(name) != nullptr : is_set;
  }
  /// The reader's caller finds that this member cannot be.
  void refuse(std::string_view name);

  void operator()(std::string_view name, bool& value);
  void operator()(std::string_view name, double& value, double low, double high);
  void operator()(std::string_view name, std::string& value, std::size_t longest = kLongestText);
  /// Seconds.
  void operator()(std::string_view name, Duration& value, double longest = kYear);
  /// Whole milliseconds, rounded up: who waits too short a time does harm.
  void milliseconds(std::string_view name, Duration& value, Duration longest);
  /// Seconds since the epoch, which nothing is before.
  void operator()(std::string_view name, WallTime& value);
  /// Texts; non-texts among them are left out.
  void operator()(std::string_view name, std::vector<std::string>& values,
                  std::size_t most = std::numeric_limits<std::size_t>::max());
  /// The name of a node or a host: one that is longer, or cannot be shown as it is, is unsound.
  void name(std::string_view name, std::string& value, std::size_t longest = kLongestName);
  void names(std::string_view name, std::vector<std::string>& values, std::size_t most,
             std::size_t longest);
  /// One of the words, in the order of the enumerators.
  template <class Enum>
  void word(std::string_view name, Enum& value, std::span<const std::string_view> words) {
    const auto at = word_at(name, static_cast<std::size_t>(value), words);
    if (reads()) value = static_cast<Enum>(at);
  }

  /// A number of `int` bounds what is counted, so that sums of a few fit.
  template <std::integral Int>
  void operator()(std::string_view name, Int& value, std::int64_t low = 0,
                  std::int64_t high = most<Int>()) {
    const auto read = number(name, static_cast<std::int64_t>(value), low, high);
    if (reads()) value = static_cast<Int>(read);
  }

  /// An object.
  template <class T>
  requires std::is_class_v<T>
  void operator()(std::string_view name, T& value) {
    object(name, [&value](Codec& inner) { members(inner, value); });
  }
  template <class T>
  void operator()(std::string_view name, std::optional<T>& value) {
    if (!has(name, value.has_value())) return;
    (*this)(name, reads() ? value.emplace() : *value);
  }
  template <class T>
  void operator()(std::string_view name, std::shared_ptr<const T>& value) {
    if (!has(name, value != nullptr)) return;
    T copy = value ? *value : T();
    (*this)(name, copy);
    if (reads()) value = std::make_shared<const T>(std::move(copy));
  }
  /// Objects, each of which `each` passes on.
  template <class T, class Each>
  void list(std::string_view name, std::vector<T>& values, std::size_t most, Each each) {
    if (!reads()) {
      json::array array;
      array.reserve(values.size());
      for (T& value : values) {
        Codec inner(texts_);
        each(inner, value);
        array.emplace_back(inner.take());
      }
      return put(name, std::move(array));
    }
    for (const json::value& one : elements(name)) {
      if (values.size() == most) break;
      Codec inner(one, *unsound_, texts_);
      each(inner, values.emplace_back());
    }
  }
  template <class T>
  void operator()(std::string_view name, std::vector<T>& values,
                  std::size_t most = std::numeric_limits<std::size_t>::max()) {
    list(name, values, most, [](Codec& inner, T& value) { members(inner, value); });
  }

  /// For members of any other form: a writer puts it, a reader looks through the elements of a
  /// list, none if it is missing.
  void put(std::string_view name, json::value value) { out_[name] = std::move(value); }
  template <std::convertible_to<std::string_view> Text>
  void put(std::string_view name, const Text& text) {
    out_[name] = json::string_view(std::string_view(text));
  }
  const json::array& elements(std::string_view name);
  const json::value* find(std::string_view name) const { return find_member(*from_, name); }
  /// What was written.
  json::object take() { return std::move(out_); }

 private:
  template <class Int>
  static constexpr std::int64_t most() {
    if constexpr (std::is_same_v<Int, int>) return kMostCounted;
    constexpr auto all = std::numeric_limits<std::int64_t>::max();
    return std::cmp_less(std::numeric_limits<Int>::max(), all)
               ? static_cast<std::int64_t>(std::numeric_limits<Int>::max())
               : all;
  }
  template <class Call>
  void object(std::string_view name, Call call) {
    if (!reads()) {
      Codec inner(texts_);
      call(inner);
      return put(name, inner.take());
    }
    const json::value* const found = find(name);
    if (found == nullptr) return;
    Codec inner(*found, *unsound_, texts_);
    call(inner);
  }
  std::int64_t number(std::string_view name, std::int64_t value, std::int64_t low,
                      std::int64_t high);
  std::size_t word_at(std::string_view name, std::size_t at,
                      std::span<const std::string_view> words);
  std::optional<std::string> text_in(std::string_view name, const json::value& value,
                                     std::size_t longest);

  const json::value* from_ = nullptr;  // null: this one writes
  std::string* unsound_ = nullptr;
  const Texts texts_;
  json::object out_;
};

/// The members of a described type, those of its bases first.
template <class T>
requires boost::describe::has_describe_members<T>::value void members(Codec& codec, T& value) {
  using namespace boost::describe;
  boost::mp11::mp_for_each<describe_members<T, mod_public | mod_inherited>>(
      [&](auto member) { codec(member.name, value.*member.pointer); });
}

/// The members of a message that may have none.
template <class Message>
void members_if_any(Codec& codec, Message& message) {
  if constexpr (!std::is_empty_v<Message>) members(codec, message);
}
/// Reads the alternative of `message` whose name is at its place in `types`; false if there is
/// none. One without a name is not looked for.
template <class Variant, std::size_t kSize>
bool read_alternative(Codec& codec, std::string_view type,
                      const std::array<std::string_view, kSize>& types, Variant& message) {
  bool found = false;
  boost::mp11::mp_for_each<boost::mp11::mp_iota_c<kSize>>([&](auto at) {
    if (found || type != types[at]) return;
    found = true;
    members_if_any(codec, message.template emplace<at>());
  });
  return found;
}

template <class T>
json::object to_json(const T& value, Codec::Texts texts = Codec::Texts::Shown) {
  Codec codec(texts);
  // A writer only looks; `members` takes what a reader has to change.
  members(codec, const_cast<T&>(value));
  return codec.take();
}
/// Reads into `value`; returns the name of the first unsound member, empty if there is none.
template <class T>
std::string from_json(const json::value& from, T& value, Codec::Texts texts = Codec::Texts::Shown) {
  std::string unsound;
  Codec codec(from, unsound, texts);
  members(codec, value);
  return unsound;
}

}  // namespace elastrun

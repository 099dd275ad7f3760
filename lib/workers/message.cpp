// SPDX-License-Identifier: Apache-2.0
#include "workers/message.hpp"

#include "core/text.hpp"
#include "goodput/compat/measurement_log.hpp"
#include "workers/message_members.hpp"
#include "workers/metric_message.hpp"

#include <algorithm>
#include <boost/json.hpp>
#include <cmath>
#include <csignal>
#include <fmt/format.h>
#include <limits>

namespace elastrun::workers {
namespace {
namespace json = boost::json;
using members::number_of;
using members::refuse;
using members::text_in;
using members::whole;

constexpr double kLongest = 10 * 365.0 * 86400;   // years; a duration must fit into nanoseconds
constexpr std::int64_t kMaxDescriptor = 1 << 30;  // fs.nr_open allows no more

AttributeValue attribute_of(const json::value& value) {
  if (value.is_bool()) return value.get_bool();
  if (value.is_int64()) return value.get_int64();
  if (value.is_uint64()) return static_cast<double>(value.get_uint64());
  if (value.is_double()) return value.get_double();
  if (value.is_string()) return std::string(std::string_view(value.get_string()));
  if (value.is_null()) return std::monostate{};
  return json::serialize(value);
}

Result<Message> step_from(const json::object& object) {
  const auto step = whole(object, "step");
  if (!step || *step < 0) return refuse("of kind step needs a whole number `step` of at least 0");
  return StepDone{*step};
}

Result<Message> checkpoint_from(const json::object& object) {
  const auto step = whole(object, "step");
  if (!step || *step < -2) return refuse("of kind checkpoint needs a whole number `step`");
  return CheckpointDone{*step};
}

using Members = std::vector<std::pair<std::string, AttributeValue>>;

/// Fails with the end of a sentence.
Result<Members> members_from(const json::object& object) {
  Members members;
  for (const auto& [key, value] : object) {
    if (members.size() == kMaxAttributes) return refuse("has more than 64 attributes");
    members.emplace_back(std::string(std::string_view(key)), attribute_of(value));
  }
  return members;
}

Result<Message> event_from(const json::object& object) {
  auto name = text_in(object, "name");
  if (!name || name->empty()) return refuse("of kind event needs a `name`");
  WorkerEvent event{std::move(*name), {}, {}};
  event.time = members::time_of(object.if_contains("time"));
  const auto* attributes = object.if_contains("attributes");
  if (attributes == nullptr) return event;
  if (!attributes->is_object()) return refuse("has `attributes` that are not an object");
  auto members = members_from(attributes->get_object());
  if (!members) return std::unexpected(members.error());
  event.attributes = std::move(*members);
  return event;
}

Result<Message> timer_from(const json::object& object) {
  const auto id = whole(object, "id");
  auto scope = text_in(object, "scope");
  if (!id || *id < 0) return refuse("of kind timer needs a whole number `id` of at least 0");
  if (!scope) return refuse("of kind timer needs a text `scope` of at most 256 bytes");
  TimerSet timer{static_cast<std::uint64_t>(*id), std::move(*scope)};
  const auto* deadline = object.if_contains("deadline");
  if (deadline == nullptr || deadline->is_null()) return timer;
  timer.deadline = number_of(deadline);
  timer.after = number_of(object.if_contains("after")).value_or(0);
  const auto signal = object.contains("signal") ? whole(object, "signal") : timer.signal;
  if (!timer.deadline || !std::isfinite(*timer.deadline) || !std::isfinite(timer.after)) {
    return refuse("of kind timer has a `deadline` that is not a number of seconds");
  }
  if (!signal || *signal < 0 || *signal > SIGRTMAX) {
    return refuse("of kind timer has a `signal` that does not exist");
  }
  timer.signal = static_cast<int>(*signal);
  return timer;
}

Result<Message> stacks_from(const json::object& object) {
  const auto signal = whole(object, "signal");
  const auto descriptor = whole(object, "descriptor");
  const bool exists = signal && *signal > 0 && *signal <= SIGRTMAX;
  // Neither can have a handler (signal(7)).
  if (!exists || *signal == SIGKILL || *signal == SIGSTOP) {
    return refuse("of kind stacks needs a `signal` that can be handled");
  }
  if (!descriptor || *descriptor < 0 || *descriptor > kMaxDescriptor) {
    return refuse("of kind stacks needs a `descriptor`");
  }
  const auto thread = object.contains("thread") ? whole(object, "thread") : 0;
  if (!thread || *thread < 0 || *thread > std::numeric_limits<pid_t>::max()) {
    return refuse("of kind stacks has a `thread` that does not exist");
  }
  return StacksOffered{static_cast<int>(*signal), static_cast<int>(*descriptor),
                       static_cast<pid_t>(*thread)};
}

/// Nothing for what the account does not read.
Result<std::optional<GoodputEntry>> entry_from(const json::value& value) {
  auto read = goodput::read_measurement(value);
  if (!read) return std::unexpected(read.error());
  if (read->entry.kind == goodput::MeasurementKind::Other) return std::nullopt;
  auto members = members_from(value.get_object());
  if (!members) return std::unexpected(members.error());
  return GoodputEntry{read->entry, std::move(read->name), std::move(*members)};
}

/// An entry that cannot be read costs only itself.
Result<Message> goodput_from(const json::object& object) {
  GoodputEntries said{text_in(object, "job").value_or(""), {}, 0};
  const auto* hooks = object.if_contains("hooks");
  said.by_hooks = hooks != nullptr && hooks->is_bool() && hooks->get_bool();
  said.lost =
      // A negative number would become a huge one.
      static_cast<std::uint64_t>(std::max<std::int64_t>(whole(object, "lost").value_or(0), 0));
  const auto* entries = object.if_contains("entries");
  if (entries == nullptr || !entries->is_array()) return refuse("of kind goodput needs `entries`");
  for (const auto& one : entries->get_array()) {
    auto entry = entry_from(one);
    if (!entry) {
      if (++said.refused == 1) said.refusal = std::move(entry.error().text);
    } else if (*entry) {
      said.entries.push_back(std::move(**entry));
    }
  }
  // To the account an entry that was refused is missing just as one that was lost.
  said.lost += said.refused;
  return said;
}

Result<Message> sender_from(const json::object& object) {
  const auto* directory = object.if_contains("directory");
  if (directory == nullptr || !directory->is_string()) {
    return refuse("of kind from needs a text `directory`");
  }
  return SentFrom{std::string(std::string_view(directory->get_string()))};
}

Result<Message> lost_from(const json::object& object) {
  const auto count = whole(object, "count").value_or(0);
  if (count < 1) return refuse("of kind lost needs a whole `count` of at least 1");
  return NotTold{static_cast<std::uint64_t>(count)};
}

Result<Message> phase_from(const json::object& object) {
  auto name = text_in(object, "phase");
  if (!name || name->empty()) return refuse("of kind phase needs a text `phase` of 1 to 256 bytes");
  PhaseEntered phase{std::move(*name)};
  const auto* at_most = object.if_contains("at_most");
  if (at_most == nullptr || at_most->is_null()) return phase;
  const auto seconds = number_of(at_most);
  // Written so that NaN is refused as well.
  if (!seconds || !(*seconds > 0)) {
    return refuse("of kind phase has an `at_most` that is not a number of seconds above 0");
  }
  phase.at_most = from_seconds(std::min(*seconds, kLongest));
  return phase;
}

Result<Message> preempt_from(const json::object& object) {
  const auto* deadline = object.if_contains("deadline");
  if (deadline == nullptr || deadline->is_null()) return PreemptAsked{};
  const auto seconds = number_of(deadline);
  // Refuses NaN as well, as above.
  if (!seconds || !(*seconds > 0)) {
    return refuse("of kind preempt has a `deadline` that is not a number of seconds above 0");
  }
  return PreemptAsked{from_seconds(std::min(*seconds, kLongest))};
}

}  // namespace

Result<Message> parse_message(std::string_view packet) {
  if (packet.size() > kMaxPacket) return refuse("is longer than 16 KiB");
  json::error_code error;
  json::parse_options options;
  options.max_depth = 8;
  auto value = json::parse(packet, error, {}, options);
  // Only then, because the mending costs a copy and nearly all packets are sound.
  if (error) value = json::parse(members::with_whole_characters(packet), error, {}, options);
  if (error || !value.is_object()) return refuse("is not a JSON object");
  const auto& object = value.get_object();
  const auto kind = text_in(object, "kind");
  if (!kind) return refuse("has no `kind`");
  if (*kind == "step") return step_from(object);
  if (*kind == "checkpoint") return checkpoint_from(object);
  if (*kind == "metric") return metric_from(object);
  if (*kind == "samples") return samples_from(object);
  if (*kind == "event") return event_from(object);
  if (*kind == "timer") return timer_from(object);
  if (*kind == "stacks") return stacks_from(object);
  if (*kind == "phase") return phase_from(object);
  if (*kind == "goodput") return goodput_from(object);
  if (*kind == "from") return sender_from(object);
  if (*kind == "lost") return lost_from(object);
  if (*kind == "ask_stacks") return StacksAsked{};
  if (*kind == "preempt") return preempt_from(object);
  if (*kind == "returned") return Returned{};
  return refuse(fmt::format("has the unknown kind '{}'", *kind));
}

std::optional<std::int64_t> step_of(const Message& message) {
  if (const auto* step = std::get_if<StepDone>(&message)) return step->step;
  const auto* said = std::get_if<GoodputEntries>(&message);
  if (said == nullptr) return std::nullopt;
  std::optional<std::int64_t> last;
  for (const auto& [entry, name, members] : said->entries) {
    using Kind = goodput::MeasurementKind;
    if (entry.kind == Kind::Step || entry.kind == Kind::StepEnd) last = entry.step;
  }
  return last;
}

}  // namespace elastrun::workers

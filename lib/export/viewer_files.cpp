// SPDX-License-Identifier: Apache-2.0

#include "export/viewer_files.hpp"

#include "core/json.hpp"
#include "core/text.hpp"
#include "export/record_line.hpp"
#include "telemetry/record.hpp"
#include "worker/summary.hpp"

#include <algorithm>
#include <bit>
#include <boost/crc.hpp>
#include <cmath>
#include <fmt/format.h>

namespace elastrun::exporter {
namespace {

using telemetry::Attribute;
using telemetry::Record;
using telemetry::Sketch;
using telemetry::Value;
using Phase = TraceEvent::Phase;

json::value plain(const Value& value) {
  const auto* const number = std::get_if<double>(&value);
  if (number != nullptr && !std::isfinite(*number)) return nullptr;
  const auto* const text = std::get_if<std::string>(&value);
  return text != nullptr ? json::value(json::string(valid_utf8(*text))) : telemetry::to_json(value);
}

double microseconds(Duration time) {
  return static_cast<double>(time.count()) / 1e3;
}

template <class T>
std::string little_endian(T value) {
  std::string bytes;
  for (std::size_t i = 0; i < sizeof value; ++i) {
    bytes += static_cast<char>(static_cast<std::uint64_t>(value) >> (8 * i) & 0xff);
  }
  return bytes;
}

/// A protobuf message in the making; fields by number. Zeros are written, too.
class Message {
 public:
  Message& number(int field, double value) {
    return key(field, 1).add(little_endian(std::bit_cast<std::uint64_t>(value)));
  }
  // A scalar is a float in Summary.Value, of seven digits: a loss has them, a large counter loses
  // the rest.
  Message& small(int field, double value) {
    const auto bits = std::bit_cast<std::uint32_t>(static_cast<float>(value));
    return key(field, 5).add(little_endian(bits));
  }
  Message& whole(int field, std::int64_t value) {
    // Two's complement in ten bytes for what is below zero, as protobuf has an int64.
    return key(field, 0).varint(static_cast<std::uint64_t>(value));
  }
  Message& bytes(int field, std::string_view value) {
    return key(field, 2).varint(value.size()).add(value);
  }
  Message& packed(int field, const std::vector<double>& values) {
    std::string all;
    for (const double one : values) all += little_endian(std::bit_cast<std::uint64_t>(one));
    return bytes(field, all);
  }
  const std::string& text() const { return text_; }

 private:
  // The wire types of protobuf: 0 a varint, 1 of 64 bits, 2 with its length, 5 of 32 bits.
  Message& key(int field, int type) {
    return varint(static_cast<std::uint64_t>(field << 3 | type));
  }
  Message& varint(std::uint64_t value) {
    for (; value >= 0x80; value >>= 7) text_ += static_cast<char>(value | 0x80);
    text_ += static_cast<char>(value);
    return *this;
  }
  Message& add(std::string_view bytes) {
    text_ += bytes;
    return *this;
  }
  std::string text_;
};

/// HistogramProto: bucket i holds the values above limit i - 1, up to limit i.
std::string histogram(const TensorBoardValue& value) {
  const Sketch& sketch = *value.sketch;
  std::vector<double> limits, counts;
  double squares = 0;  // of the buckets: a sketch does not keep those of its values
  const auto add = [&](double limit, std::uint64_t count) {
    squares += limit * limit * static_cast<double>(count);
    limits.push_back(limit);
    counts.push_back(static_cast<double>(count));
  };
  const auto bound = [&](const worker::Buckets& buckets, std::size_t i) {
    return worker::bucket_bound(buckets.offset + static_cast<int>(i), sketch.scale());
  };
  const auto& below = sketch.negative();
  // From the last one on: limits have to rise, and the largest magnitude is the least number.
  for (std::size_t i = below.counts.size(); i-- > 0;) add(-bound(below, i), below.counts[i]);
  if (sketch.zeros() != 0) add(0, sketch.zeros());
  const auto& above = sketch.positive();
  if (!above.counts.empty()) add(bound(above, 0), 0);  // where the first one begins
  for (std::size_t i = 0; i < above.counts.size(); ++i) add(bound(above, i + 1), above.counts[i]);
  return Message()
      .number(1, value.min)
      .number(2, value.max)
      .number(3, static_cast<double>(sketch.count()))
      .number(4, value.sum)
      .number(5, squares)
      .packed(6, limits)
      .packed(7, counts)
      .text();
}

/// Values of ranks, and of other label values, are curves of their own.
std::string tag_of(const Record& record) {
  const auto rank = record.whole("rank");
  const auto name = series_name(record);
  return rank ? fmt::format("{}/rank_{}", name, *rank) : name;
}

}  // namespace

std::uint32_t masked_crc32c(std::string_view bytes) {
  // Castagnoli's polynomial, and not that of zlib: TFRecord is CRC-32C (RFC 3720, appendix B.4, has
  // its test values).
  boost::crc_optimal<32, 0x1edc6f41, 0xffffffff, 0xffffffff, true, true> crc;
  crc.process_bytes(bytes.data(), bytes.size());
  // As TensorFlow masks it, so that a checksum of data with checksums in it stays useful.
  return std::rotr(std::uint32_t{crc.checksum()}, 15) + 0xa282ead8;
}

std::string tf_record(std::string_view payload) {
  // With a checksum by itself: a reader relies on it before the payload has come.
  const std::string size = little_endian(std::uint64_t{payload.size()});
  return size + little_endian(masked_crc32c(size)) + std::string(payload) +
         little_endian(masked_crc32c(payload));
}

std::string tensorboard_version(WallTime when) {
  // The first record of a file, by which a reader tells the format.
  return tf_record(Message().number(1, to_seconds(when)).bytes(3, "brain.Event:2").text());
}

std::string tensorboard_values(WallTime when, std::int64_t step,
                               const std::vector<TensorBoardValue>& values) {
  Message summary;
  for (const auto& one : values) {
    Message value;
    // Parsers of protobuf refuse a whole message for a string that is not UTF-8.
    value.bytes(1, valid_utf8(one.tag));
    if (one.sketch == nullptr) {
      value.small(2, one.value);
    } else {
      value.bytes(5, histogram(one));
    }
    summary.bytes(1, value.text());
  }
  return tf_record(
      Message().number(1, to_seconds(when)).whole(2, step).bytes(5, summary.text()).text());
}

std::string tensorboard_file_name(WallTime when, std::string_view host, int pid) {
  const auto seconds = std::chrono::floor<std::chrono::seconds>(when.time_since_epoch()).count();
  // TensorBoard takes a file as its output by "tfevents" in the name, and reads those of a
  // folder in the order of their names: so the time comes first, with its zeros.
  return fmt::format("events.out.tfevents.{:010}.{}.{}.0", seconds, host, pid);
}

std::string TensorBoardRecords::window(const Record& record) {
  std::vector<TensorBoardValue> values;
  const auto& window = *record.window;
  const auto tag = tag_of(record);
  for (const auto& [aggregation, value] : window.aggregates) {
    const auto number = telemetry::as_real(value);
    if (number) values.push_back({tag + "." + aggregation, *number});
  }
  if (values.empty() && window.sketch == nullptr) return {};
  if (window.sketch != nullptr) {
    TensorBoardValue histogram{tag, 0, window.sketch.get()};
    // The values' own where the window has them: a quantile is one of a bucket.
    const auto own = [&](std::string_view name, double otherwise) {
      const auto found = std::ranges::find(
          window.aggregates, name, [](const auto& one) { return std::string_view(one.first); });
      return found == window.aggregates.end()
                 ? otherwise
                 : telemetry::as_real(found->second).value_or(otherwise);
    };
    histogram.min = own("min", window.sketch->quantile(0).value_or(0));
    histogram.max = own("max", window.sketch->quantile(1).value_or(0));
    histogram.sum = own("sum", 0);
    values.push_back(histogram);
  }
  return tensorboard_values(record.stamp.wall, step_of(record, tag), values);
}

std::int64_t TensorBoardRecords::step_of(const Record& record, const std::string& tag) {
  const auto step = record.whole("step");
  // Without the script's step a curve counts its own values: after a restart that drifts from
  // training.
  return step ? *step : steps_[tag]++;
}

std::string TensorBoardRecords::of(const Record& record) {
  if (record.kind == Record::Kind::Window && record.window != nullptr) {
    return record.window->no_data ? std::string() : window(record);
  }
  if (record.kind != Record::Kind::Sample) return {};
  const auto number = telemetry::as_real(record.value);
  if (!number) return {};
  const auto tag = tag_of(record);
  return tensorboard_values(record.stamp.wall, step_of(record, tag), {{tag, *number}});
}

std::string trace_line(const TraceEvent& event) {
  json::object line;
  line["name"] = valid_utf8(event.name);
  if (!event.category.empty()) line["cat"] = valid_utf8(event.category);
  line["ph"] = std::string(1, static_cast<char>(event.phase));
  // The format's unit is microseconds.
  line["ts"] = microseconds(event.time);
  if (event.phase == Phase::Complete) line["dur"] = microseconds(event.length);
  line["pid"] = event.process;
  line["tid"] = event.thread;
  // The scope of an instant: over all threads of its process, or on one.
  if (event.phase == Phase::Instant) line["s"] = event.thread == 0 ? "p" : "t";
  json::object& arguments = line["args"].emplace_object();
  for (const auto& [key, value] : event.arguments) arguments[valid_utf8(key)] = plain(value);
  // A comma behind each: the format lets the closing bracket be missing, so that a trace of a job
  // that was killed can be read.
  return json::serialize(line) + ",\n";
}

std::string trace_process(std::int64_t process, std::string_view name, int place) {
  const auto line = [&](const char* what, Attribute argument) {
    return trace_line({Phase::Metadata, what, "", {}, {}, process, 0, {std::move(argument)}});
  };
  return line("process_name", {"name", std::string(name)}) +
         line("process_sort_index", {"sort_index", std::int64_t{place}});
}

std::string trace_end() {
  auto text = trace_line({Phase::Metadata, "process_name", "", {}, {}, 0, 0, {{"name", "agent"}}});
  text.resize(text.size() - 2);  // the comma and the newline
  return text + "\n]\n";
}

std::optional<TraceEvent> trace_event_of(const Record& record) {
  TraceEvent event{Phase::Instant, record.name, record.scope};
  event.time = record.stamp.mono.time_since_epoch();
  // Process 0 of a trace is the agent.
  if (const auto rank = record.whole("rank")) event.process = *rank + 1;
  switch (record.kind) {
    case Record::Kind::Event:
      // The end of a span comes as the whole of it, too.
      if (record.text("span.phase") == "stop") return {};
      event.arguments = record.attributes;
      return event;
    case Record::Kind::SpanEnd: {
      const auto length = record.whole("duration_ns");
      if (!length || *length < 0) return std::nullopt;
      event.phase = Phase::Complete;
      event.length = Duration(*length);
      event.time -= event.length;  // a span is recorded when it ends
      event.arguments = record.attributes;
      return event;
    }
    case Record::Kind::Sample:
      if (!telemetry::as_real(record.value)) return std::nullopt;
      event.arguments = {{"value", record.value}};
      break;
    case Record::Kind::Window:
      if (record.window == nullptr || record.window->no_data) return std::nullopt;
      for (const auto& aggregate : record.window->aggregates) {
        if (telemetry::as_real(aggregate.second)) event.arguments.push_back(aggregate);
      }
      if (event.arguments.empty()) return std::nullopt;
      break;
  }
  event.phase = Phase::Counter;
  event.name = series_name(record);
  return event;
}

std::string TraceLines::of(const telemetry::Record& record) {
  auto event = trace_event_of(record);
  if (!event) return {};
  // Viewers keep times as doubles of microseconds: the fewer digits are before the point, the more
  // are left behind it.
  event->time = std::max(event->time - start_.time_since_epoch(), Duration::zero());
  std::string text;
  if (named_.insert(event->process).second) {
    const auto rank = event->process - 1;
    text = trace_process(event->process, rank < 0 ? "agent" : fmt::format("rank {}", rank),
                         static_cast<int>(std::clamp<std::int64_t>(event->process, 0, 1 << 30)));
  }
  return text + trace_line(*event);
}

}  // namespace elastrun::exporter

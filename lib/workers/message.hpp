// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/clock.hpp"
#include "core/error.hpp"
#include "goodput/compat/goodput_calculator.hpp"
#include "system/process_stacks.hpp"
#include "telemetry/record.hpp"

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <sys/types.h>
#include <utility>
#include <variant>
#include <vector>

namespace elastrun::workers {

/// JSON of a sloppy writer, with U+FFFD for each byte that is not UTF-8, and for each escape of
/// half a surrogate pair, which Python's json writes for names of files that are not.
std::string with_whole_characters(std::string_view json);

/// Limits of what a worker may say at once. A packet above the first is refused before it is read.
constexpr std::size_t kMaxPacket = 16u << 10;
constexpr std::size_t kMaxAttributes = 64;
constexpr std::size_t kMaxName = 256;

struct StepDone {
  std::int64_t step = 0;
};
/// -1: of everything so far. -2: saved, or before the first step loaded, of a step not known.
struct CheckpointDone {
  std::int64_t step = -1;
};
struct MetricSample {
  std::string name;
  double value = 0;
  std::string group;
  /// Several samples that the worker has summed up, of which `value` was the last, with the sketch
  /// of a histogram. NaN and infinities are among none of these. Null: it is one sample.
  std::shared_ptr<telemetry::Summary> batch{};
  bool counts = false;  // `value` is by how much a total has risen since the sender last said
  std::optional<std::int64_t> step{};                   // of training
  std::shared_ptr<const telemetry::Meaning> meaning{};  // null: not said
  std::optional<double> time{};  // when it was put, in seconds since the epoch; none: now
  bool each = false;             // its samples come one by one, too, as SamplesTold
};
/// Samples one by one, in the order in which they were put.
struct SamplesTold {
  struct Series {
    std::string group, name;
    std::shared_ptr<const telemetry::Meaning> meaning{};
  };
  struct Sample {
    std::size_t series = 0;  // its place among them
    double time = 0, value = 0;
    std::optional<std::int64_t> step{};
  };
  std::vector<Series> series;
  std::vector<Sample> samples;
  // By group: further ones, beyond what is told one by one.
  std::vector<std::pair<std::string, std::uint64_t>> suppressed{};
};
struct WorkerEvent {
  std::string name;
  std::vector<telemetry::Attribute> attributes;
  std::optional<double> time{};  // when it happened, in seconds since the epoch; none: now
};
/// The script of --run-path has returned; its process waits for the others before it ends.
struct Returned {};
/// An expiration timer of the sender, or its release. `id` tells apart those of one process.
struct TimerSet {
  std::uint64_t id = 0;
  std::string scope;                 // of kMaxName bytes at most
  std::optional<double> deadline{};  // seconds of CLOCK_MONOTONIC; none: released
  double after = 0;                  // seconds, as was asked for
  int signal = 9;                    // 0: told, but not ended
};
/// The sender offers its stacks.
struct StacksOffered : system::StackOffer {};
/// From now on the worker does something else than training ("eval"), or trains again ("train").
struct PhaseEntered {
  std::string name;                   // of 1 to kMaxName bytes
  std::optional<Duration> at_most{};  // that it may take, if the script says so
};
/// What a recorder of goodput says, in the members of ml-goodput-measurement's log.
struct GoodputEntry {
  goodput::MeasurementEntry entry;
  std::string name;  // of a custom event or a wait
  std::vector<telemetry::Attribute> members;
};
struct GoodputEntries {
  std::string job;  // as the recorder calls it; empty: as the run
  std::vector<GoodputEntry> entries;
  std::uint64_t lost = 0;     // since it last said so: entries that it could not keep, or that
  std::uint64_t refused = 0;  // could not be read: these, of which the first
  std::string refusal{};      // for this reason
  bool by_hooks = false;      // of --goodput auto: the script has said nothing itself
};
/// The sender belongs to the worker whose directory (ELASTRUN_RUN_DIR) this is: for those that have
/// ended before anybody can look.
struct SentFrom {
  std::string directory;
};
/// So much more the sender could not tell: the agent was behind, or it meant nothing.
struct NotTold {
  std::uint64_t count = 0;
};
/// The sender, which is not a worker, asks where the workers of the job stand.
struct StacksAsked {};
/// The sender, which is not a worker, asks that the job saves and ends.
struct PreemptAsked {
  Duration deadline{};  // 0: what the job's options say
};
using Message = std::variant<StepDone, CheckpointDone, MetricSample, WorkerEvent, Returned,
                             TimerSet, StacksOffered, PhaseEntered, GoodputEntries, StacksAsked,
                             PreemptAsked, SentFrom, NotTold, SamplesTold>;

/// One packet of the worker channel: a JSON object with `kind` step, checkpoint, metric,
/// samples, event, timer, stacks, phase, goodput, ask_stacks, preempt, from, lost or returned.
/// Hostile until parsed: anything else fails with Protocol and one sentence. Pure.
Result<Message> parse_message(std::string_view packet);

/// The last training step that a message tells of, if it does.
std::optional<std::int64_t> step_of(const Message& message);

}  // namespace elastrun::workers
